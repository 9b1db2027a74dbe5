"""keep_rows: the rows of accepted nodes are moved together, byte for byte, and no other row changes."""

import ml_dtypes
import numpy as np
import pytest
import torch
import xeflash
from arrays import to_array, to_xpu

PAGE, HEADS, DIM = 4, 2, 3
ACCEPTED = [[0, 2, 5, -1], [-1, -1, -1, -1], [1, 3, 4, 6], [0, -1, -1, -1], [6, 0, 5, -1]]
LENGTHS = [3, 13, 0, 12, 5]  # the second has no room for a node, the fourth for just one
TABLE = [[7, 2, 11, 0], [-9, 99, 0, 7], [1, 10, 3, 99], [9, 4, 6, 8], [5, 12, 13, 99]]  # the second is not in use
SEQUENCES = [5, 1, 0, 2, 3]
DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "e4m3": torch.float8_e4m3fn,
    "int8": torch.int8,
}


def words(dtype, *shape):
    """Random bits."""
    size = dtype.itemsize
    return torch.randint(0, 256, (*shape[:-1], shape[-1] * size), dtype=torch.uint8).view(dtype)


def laid_out(layout, dtype, cached, rows):
    """K, V (cached, rows, HEADS, DIM), and the memory that has both."""
    if layout == "heads first":
        whole = words(dtype, 2, cached, HEADS, rows, DIM)
        return *whole.transpose(2, 3), whole
    if layout == "pages of both":  # and V has another head dim
        whole = words(dtype, cached, 2, rows, HEADS, DIM + 1)
        return whole[:, 0], whole[:, 1, ..., 1:], whole
    if layout == "latent":
        whole = words(dtype, cached, rows, HEADS, DIM + 2)
        return whole, whole[..., :DIM], whole
    whole = words(dtype, 2, cached, rows, HEADS, DIM)
    return *whole, whole


def moved(x, paged):
    """What a cache has to be, row by row."""
    want = x.clone()
    for b, nodes in enumerate(ACCEPTED):
        for n, node in enumerate(i for i in nodes if i >= 0):
            old, new = LENGTHS[b] + node, LENGTHS[b] + n
            at = [(TABLE[b][i // PAGE], i % PAGE) if paged else (SEQUENCES[b], i) for i in (old, new)]
            want[at[1]] = x[at[0]]
    return want


def as_bytes(x):
    return x.contiguous().view(torch.uint8)


def place(x, kind):
    if kind == "numpy" and x.dtype == torch.float8_e4m3fn:
        return x.view(torch.uint8).numpy().view(ml_dtypes.float8_e4m3fn)
    return to_xpu(x) if kind == "xpu" else to_array(x, kind)


def check(kind, dtype, layout, paged, index=torch.int32, scales=False):
    cached, rows = (14, PAGE) if paged else (6, 13)
    k, v, whole = laid_out(layout, DTYPES[dtype], cached, rows)
    factors = torch.rand(2, cached, rows, HEADS) if scales else []
    want = [moved(x, paged) for x in (k, v, *factors)]
    there = place(whole, kind)
    if kind == "xpu":
        k, v = (there.as_strided(x.shape, x.stride(), x.storage_offset()) for x in (k, v))
    else:
        k, v = (place(x, kind) for x in (k, v))
    by = {"block_table": TABLE} if paged else {"cache_batch_idx": SEQUENCES}
    given = {name: place(torch.tensor(x, dtype=torch.int32), kind) for name, x in by.items()}
    given |= dict(zip(("k_scale", "v_scale"), factors := [place(x, kind) for x in factors], strict=False))
    lengths = place(torch.tensor(LENGTHS, dtype=torch.int32), kind)
    assert xeflash.keep_rows(k, v, place(torch.tensor(ACCEPTED, dtype=index), kind), lengths, **given) is None
    for got, x in zip((k, v, *factors), want, strict=True):
        if kind == "numpy":
            assert np.ascontiguousarray(got).tobytes() == as_bytes(x).numpy().tobytes()
        else:
            assert torch.equal(as_bytes(got.cpu()), as_bytes(x))


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("layout", ["alone", "heads first", "pages of both", "latent"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_accepted_rows_move(kind, dtype, layout, paged):
    check(kind, dtype, layout, paged)


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_factors_of_rows_move(kind):
    check(kind, "e4m3", "alone", True, torch.int64, scales=True)


def test_units_of_4_bits_move_with_their_scales():
    k, v = torch.randint(-9, 9, (6, 13, 2, 64), dtype=torch.int8), torch.randint(0, 256, (6, 13, 2, 64)).to(torch.uint8)
    factors = [torch.rand(6, 13, 2), torch.rand(6, 13, 2, 2).half()]
    want = [moved(x, False) for x in (k, v, *factors)]
    given = {"cache_batch_idx": torch.tensor(SEQUENCES, dtype=torch.int32), "k_scale": factors[0]}
    accepted, lengths = torch.tensor(ACCEPTED, dtype=torch.int32), torch.tensor(LENGTHS, dtype=torch.int32)
    xeflash.keep_rows(k, v, accepted, lengths, **given, v_scale=factors[1])
    assert all(torch.equal(x, y) for x, y in zip((k, v, *factors), want, strict=True))
    with pytest.raises(TypeError, match="v_scale must be float16"):
        xeflash.keep_rows(k, v, accepted, lengths, **given, v_scale=factors[1].float())


@pytest.mark.gpu
@pytest.mark.xpu
@pytest.mark.parametrize("layout", ["latent", "pages of both"])
def test_tensors_on_xpu(xpu, layout):
    check("xpu", "e4m3", layout, True, torch.int64, scales=True)


def cache(rows=9, sequences=2):
    return words(torch.float32, 2, sequences, rows, HEADS, DIM)


def test_layers_move_together():
    """Those that share a cache, too: nothing moves twice."""
    layers, accepted = [cache() for _ in range(3)], torch.tensor([[1, 2, 4], [0, 3, -1]])
    keys, values = ([*(x[i] for x in layers), layers[0][i]] for i in (0, 1))
    before = [x.clone() for x in layers]
    xeflash.keep_rows(keys, tuple(values), accepted, 2)
    for got, x in zip(layers, before, strict=True):
        want = x.clone()
        want[:, 0, 2:5], want[:, 1, 3] = x[:, 0, [3, 4, 6]], x[:, 1, 5]
        assert torch.equal(as_bytes(got), as_bytes(want))


@pytest.mark.parametrize(
    "accepted", [torch.full((2, 3), -1), torch.zeros(2, 0).long(), torch.tensor([[0, 1], [0, -1]])]
)
def test_nothing_moves(accepted):
    got = cache()
    before = got.clone()
    xeflash.keep_rows(*got, accepted, torch.tensor([7, 8]).int())
    assert torch.equal(as_bytes(got), as_bytes(before))
    xeflash.keep_rows(*got[:, :0], accepted[:0], 0)
    xeflash.keep_rows(*cache(rows=0), accepted[:, :0], 0)
    xeflash.keep_rows(*got, accepted[:0], 0, block_table=torch.zeros(0, 3).int())


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_graph_has_it(dynamic):
    torch._dynamo.reset()  # all functions share the code of a wrapper, which is compiled a limited number of times
    want, accepted, lengths = cache(), torch.tensor([[1, 2, 4], [3, -1, -1]]), torch.tensor([2, 3]).int()
    got = want.clone()
    xeflash.keep_rows(*want, accepted, lengths)
    compiled = torch.compile(xeflash.keep_rows, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    compiled([got[0]], [got[1]], accepted, lengths)
    assert torch.equal(as_bytes(got), as_bytes(want))


def test_caches_of_inference_mode():
    with torch.inference_mode():
        got = cache()
        xeflash.keep_rows(*got, torch.tensor([[1], [1]]), 0)
        assert torch.equal(as_bytes(got[:, :, 0]), as_bytes(got[:, :, 1]))
    with pytest.raises(ValueError, match=r"^keep_rows: k_cache must be written in inference mode, where it was made"):
        xeflash.keep_rows(*got, torch.tensor([[1], [1]]), 0)


CACHE = torch.zeros(2, 9, HEADS, DIM)
REFUSED = {
    "k dims": ({"k_cache": CACHE[0]}, ValueError, "k_cache must have shape [9, 2, heads, head_dim], got [9, 2, 3]"),
    "v rows": ({"v_cache": CACHE[:, :8]}, ValueError, "v_cache must have shape [2, 9, 2, head_dim], got [2, 8, 2, 3]"),
    "one v": ({"k_cache": [CACHE]}, TypeError, "v_cache must be a list, as k_cache is, got Tensor"),
    "layers": ({"k_cache": [CACHE] * 2, "v_cache": [CACHE]}, ValueError, "v_cache must have an array for each layer (2), got 1"),
    "no layers": ({"k_cache": [], "v_cache": []}, ValueError, "k_cache must have an array for each layer (1), got 0"),
    "a list of v": ({"v_cache": [CACHE]}, TypeError, "v_cache must be one array, as k_cache is, got list"),
    "rows of a layer": ({"k_cache": [CACHE, CACHE[:1]], "v_cache": [CACHE] * 2}, ValueError, "k_cache[1] must have shape [2, 9, heads, head_dim], got [1, 9, 2, 3]"),
    "library": ({"v_cache": CACHE.numpy()}, TypeError, "v_cache must be a Tensor as k_cache is one, got ndarray"),
    "device": ({"v_cache": CACHE.to("meta")}, ValueError, "v_cache must be on the device of k_cache (cpu), got meta"),
    "expanded": ({"k_cache": CACHE[:1].expand(2, -1, -1, -1)}, ValueError, "k_cache must not have elements in one place, got strides [0, 6, 3, 1]"),
    "expanded layer": ({"k_cache": [CACHE], "v_cache": [CACHE[:1].expand(2, -1, -1, -1)]}, ValueError, "v_cache[0] must not have elements in one place"),
    "sparse": ({"k_cache": CACHE.to_sparse()}, TypeError, "k_cache must be a dense tensor, got torch.sparse_coo"),
    "gradients": ({"v_cache": CACHE.clone().requires_grad_()}, NotImplementedError, "v_cache must not require grad"),
    "gradients of a layer": ({"k_cache": [CACHE], "v_cache": [CACHE.clone().requires_grad_()]}, NotImplementedError, "v_cache[0] must not require grad"),
    "accepted none": ({"accepted": None}, TypeError, "accepted must be a torch tensor"),
    "accepted dtype": ({"accepted": torch.ones(2, 3)}, TypeError, "accepted must be int32 or int64, got float32"),
    "accepted bools": ({"accepted": torch.ones(2, 3).bool()}, TypeError, "accepted must be int32 or int64, got bool"),
    "accepted dims": ({"accepted": torch.tensor([0, 1])}, ValueError, "accepted must have shape [sequences, nodes], got [2]"),
    "accepted rows": ({"accepted": torch.tensor([[0, 1]])}, ValueError, "accepted must have a row for each sequence of k_cache (2), got 1"),
    "behind -1": ({"accepted": torch.tensor([[0, 1], [-1, 0]])}, ValueError, "accepted must name nodes of a sequence, each once, and then -1, got [-1, 0] at [1]"),
    "below -1": ({"accepted": torch.tensor([[0, 1], [0, -2]])}, ValueError, "accepted must name nodes of a sequence, each once, and then -1, got [0, -2] at [1]"),
    "twice": ({"accepted": torch.tensor([[0, 1], [2, 2]])}, ValueError, "accepted must name nodes of a sequence, each once, and then -1, got [2, 2] at [1]"),
    "past the end": ({"accepted": torch.tensor([[0, 6], [0, 7]])}, ValueError, "cache_seqlens and the last node must be rows of a sequence, 0 to 8, got 2 and node 7 at [1]"),
    "negative": ({"cache_seqlens": torch.tensor([0, -1]).int()}, ValueError, "cache_seqlens and the last node must be rows of a sequence, 0 to 8, got -1 and node 0 at [1]"),
    "a large number": ({"cache_seqlens": 10**30}, ValueError, "cache_seqlens must be 0 to the rows of the cache, got 1000"),
    "lengths' dtype": ({"cache_seqlens": torch.tensor([2, 2])}, TypeError, "cache_seqlens must be int32, got int64"),
    "lengths' shape": ({"cache_seqlens": torch.tensor([2]).int()}, ValueError, "cache_seqlens must have shape [2], got [1]"),
    "bool": ({"cache_seqlens": True}, TypeError, "cache_seqlens must be an int, or int32 of each sequence, got True"),
    "index": ({"cache_batch_idx": torch.tensor([0, 2]).int()}, ValueError, "cache_batch_idx must be 0 to 1, got 2 for sequence 1"),
    "index twice": ({"cache_batch_idx": torch.tensor([1, 1]).int()}, ValueError, "cache_batch_idx must lead kept rows to a place each, got one place for two"),
    "table": ({"block_table": torch.tensor([[0], [-1]]).int()}, ValueError, "block_table must be 0 to 1, got -1 for sequence 1"),
    "table dtype": ({"block_table": torch.tensor([[0], [1]])}, TypeError, "block_table must be int32, got int64"),
    "table rows": ({"block_table": torch.tensor([[0]]).int()}, ValueError, "block_table must have shape [2, pages of a sequence], got [1, 1]"),
    "table and index": ({"block_table": torch.tensor([[0], [1]]).int(), "cache_batch_idx": torch.tensor([0, 1]).int()}, NotImplementedError, "cache_batch_idx must be None with block_table, got Tensor"),
    "no pages": ({"block_table": torch.zeros(2, 0).int()}, ValueError, "cache_seqlens and the last node must be rows of a sequence, 0 to -1, got 2 and node 2 at [0]"),
    "scale of heads": ({"k_scale": torch.ones(HEADS)}, ValueError, "k_scale must have shape [2, 9, 2], got [2]"),
    "scale dtype": ({"v_scale": torch.ones(2, 9, HEADS).half()}, TypeError, "v_scale must be float32, got float16"),
    "one scale": ({"k_scale": torch.ones(2, 9, HEADS)}, ValueError, "k_scale and v_scale must be given together"),
    "scale number": ({"v_scale": 2.0}, TypeError, "v_scale must be a torch tensor"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_with_the_reason(name):
    changes, error, text = REFUSED[name]
    arguments = {"k_cache": CACHE, "v_cache": CACHE, "accepted": torch.tensor([[0, 2], [0, -1]]), "cache_seqlens": 2}
    with pytest.raises(error) as found:
        xeflash.keep_rows(**arguments | changes)
    assert str(found.value).startswith("keep_rows: " + text), found.value


def test_a_cache_that_is_read_only_is_refused():
    got = cache().numpy()
    got.flags.writeable = False
    with pytest.raises(ValueError, match="^keep_rows: k_cache must be writable, got one that is read-only"):
        xeflash.keep_rows(*got, np.array([[1], [1]]), 0)
