"""write_to_cache: the rows that slots name are written, quantised, and no others."""

from itertools import product

import ml_dtypes
import numpy as np
import pytest
import torch
import xeflash
from arrays import DTYPES, FORMATS, from_array, is_on_gpu, to_array
from cover import few_rows

PAGES, PAGE, HEADS = 5, 12, 3
SLOTS = {
    "none": [],
    "some": [5, -1, 59, 0, -7, 23, 24],
    "left out": [-1, -1],
    "padded": [7],  # k and v have more tokens
}
NUMPY = {torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn, torch.float8_e5m2: ml_dtypes.float8_e5m2}


def place(x, kind):
    if kind == "numpy" and isinstance(x, torch.Tensor) and x.dtype in NUMPY:
        return x.view(torch.uint8).numpy().view(NUMPY[x.dtype])
    return to_array(x, kind)


def stored(x, dtype):
    """Numbers as the type of a cache has them: the nearest, at most its largest."""
    if dtype.is_floating_point:
        return x.clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max).to(dtype).float()
    return x.round().clamp(-127, 127)


def check(kind, dtype, cache=None, slots="some", dim=64, dim_v=64, index=torch.int64, scales=None, heads_first=False):
    """Caches lie beside each other in one array, as vLLM has them, and k and v are columns of another."""
    dtype = DTYPES[dtype]
    cache_dtype = FORMATS.get(cache, dtype)
    tokens, slots = 9, torch.tensor(SLOTS[slots], dtype=index)
    both = (100 * torch.randn(tokens, HEADS, dim + dim_v)).to(dtype)
    shape = (PAGES, HEADS, PAGE, dim + dim_v) if heads_first else (PAGES, PAGE, HEADS, dim + dim_v)
    whole = torch.randint(-9, 9, shape).to(cache_dtype)
    before = whole.transpose(1, 2).float() if heads_first else whole.float()
    there, new = (to_array(x, kind) if kind == "xpu" else x for x in (whole, both))
    rows = there.transpose(1, 2) if heads_first else there
    parts = [y for x in (new, rows) for y in x.split((dim, dim_v), -1)]
    given = {f"{x}_scale": s for x, s in zip("kv", scales or (), strict=False)}
    if kind == "xpu":
        written = xeflash.write_to_cache(*parts, slots.to("xpu"), **{n: to_array(s, kind) for n, s in given.items()})
        got = rows.cpu().float()
    else:
        arrays = [place(x.contiguous() if is_on_gpu(kind) else x, kind) for x in (*parts, slots)]  # read() wants it
        written = xeflash.write_to_cache(*arrays, **{name: place(s, kind) for name, s in given.items()})
        got = torch.cat([from_array(x, kind).float() for x in arrays[2:4]], -1) if is_on_gpu(kind) else rows.float()
    assert written is None
    want = before
    factors = [torch.as_tensor(s, dtype=torch.float32) for s in scales] if scales else [torch.ones(())] * 2
    for i, slot in enumerate(slots.tolist()):
        if slot >= 0:
            of = [f[i] if f.ndim == 2 and len(f) > 1 else f for f in factors]
            values = [x[i].float() / f[..., None] for x, f in zip(both.split((dim, dim_v), -1), of, strict=True)]
            want[slot // PAGE, slot % PAGE] = stored(torch.cat(values, -1), cache_dtype)
    assert torch.equal(got, want)


@pytest.mark.parametrize("slots", SLOTS)
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_slots_are_written_and_no_others(kind, slots):
    check(kind, "fp32", slots=slots)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_slots_may_have_two_types(index):
    check("torch", "fp32", index=index, heads_first=True)


@pytest.mark.wide
@pytest.mark.parametrize(("dim", "dim_v"), [(64, 64), (59, 111), (512, 64), (1, 1)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_head_dims(dtype, dim, dim_v):
    check("torch", dtype, dim=dim, dim_v=dim_v)


QUANTISED = {
    "number": (0.5, 2),
    "number of numpy": (np.float32(0.5), np.float16(2)),
    "one": (torch.tensor(0.5), torch.tensor([2.0])),
    "one in a matrix": (torch.full((1, 1), 0.5), torch.full((1, 1), 2.0)),
    "heads": (torch.tensor([0.5, 1.0, 4.0]), torch.tensor([8.0, 0.25, 1.0])),
    "tokens and heads": (2.0 ** torch.arange(-10, 11).view(7, 3), 2.0 ** torch.arange(10, -11, -1).view(7, 3)),
}


@pytest.mark.parametrize("scales", QUANTISED)
@pytest.mark.parametrize(("dtype", "name"), few_rows(product(DTYPES, FORMATS), ("fp32", "e4m3")))
def test_scales(dtype, name, scales):
    check("torch", dtype, name, scales=QUANTISED[scales])


@pytest.mark.wide
@pytest.mark.gpu
@pytest.mark.parametrize(("name", "scales"), list(product(FORMATS, QUANTISED)))
def test_scales_on_gpu(gpu, name, scales):
    if scales != "number of numpy":
        check("gpu", "bf16", name, scales=QUANTISED[scales])


@pytest.mark.gpu
@pytest.mark.xpu
@pytest.mark.parametrize("slots", SLOTS)
def test_tensors_on_xpu(xpu, slots):
    check("xpu", "bf16", slots=slots, heads_first=True)


@pytest.mark.gpu
@pytest.mark.xpu
def test_slots_past_the_end_are_left_out_on_a_device(xpu):
    cache = torch.zeros(2, PAGES, PAGE, HEADS, 64, device="xpu").bfloat16()
    x = torch.ones(2, HEADS, 64, device="xpu").bfloat16()
    for past in (60, 2**32 + 1, 1 - 2**32):
        xeflash.write_to_cache(x, x, *cache, torch.tensor([past, 3], device="xpu"))
    assert cache.cpu().sum() == 2 * HEADS * 64 == cache[:, 0, 3].cpu().sum()


def test_scales_of_rows_are_found():
    """As appending finds them: the row's largest becomes the type's largest."""
    cache = torch.zeros(2, PAGES, PAGE, HEADS, 64, dtype=torch.float8_e4m3fn)
    scales = torch.zeros(2, PAGES, PAGE, HEADS)
    k, v = torch.randn(2, 4, HEADS, 64)
    xeflash.write_to_cache(k, v, *cache, torch.tensor([59, 1, -1, 30]), k_scale=scales[0], v_scale=scales[1])
    assert int((scales != 0).sum()) == 2 * 3 * HEADS
    for x, numbers, factors in zip((k, v), cache, scales, strict=True):
        torch.testing.assert_close(factors[0, 1], x[1].abs().amax(-1) / 448)
        assert torch.equal(numbers[0, 1].float(), (x[1] / factors[0, 1, :, None]).to(torch.float8_e4m3fn).float())


@pytest.mark.wide
def test_what_was_written_is_attended():
    """With scales of heads, by tables and lengths, as appending leaves it."""
    table, lengths = torch.tensor([[3, 0], [2, 1]], dtype=torch.int32), torch.tensor([20, 9], dtype=torch.int32)
    caches, appended = torch.zeros(2, 2, 4, 16, 2, 64, dtype=torch.float8_e4m3fn)
    k, v = torch.randn(2, 2, 20, 2, 64)
    scales = {"k_scale": torch.tensor([0.5, 0.25]), "v_scale": torch.tensor([0.125, 0.5])}
    q = torch.randn(2, 1, 4, 64)
    slots = torch.tensor(
        [[int(table[b, i // 16]) * 16 + i % 16 if i < n else -1 for i in range(20)] for b, n in enumerate((20, 9))]
    )
    xeflash.write_to_cache(k.flatten(0, 1), v.flatten(0, 1), *caches, slots.flatten(), **scales)
    got = xeflash.flash_attn_with_kvcache(q, *caches, cache_seqlens=lengths, block_table=table, **scales)
    for b, n in enumerate((20, 9)):
        new = [x[b : b + 1, :n] for x in (k, v)]
        want = xeflash.flash_attn_with_kvcache(
            q[b : b + 1], *appended, *new, cache_seqlens=0, block_table=table[b : b + 1], **scales
        )
        torch.testing.assert_close(got[b : b + 1], want)
    assert torch.equal(caches.view(torch.uint8), appended.view(torch.uint8))


def test_torch_sees_it():
    torch._dynamo.reset()  # all functions share the code of a wrapper, which is compiled a limited number of times
    cache = torch.zeros(2, PAGES, PAGE, HEADS, 64)
    x, slots = torch.randn(2, 7, HEADS, 64), torch.tensor(SLOTS["some"])
    want = cache.clone()
    xeflash.write_to_cache(*x, *want, slots)
    torch.compile(xeflash.write_to_cache, fullgraph=True, backend="aot_eager")(*x, cache[0], cache[1], slots)
    assert torch.equal(cache, want)
    versions = [y._version for y in cache]
    torch.ops.xeflash.write_to_cache(*x, *cache, slots)
    assert [y._version for y in cache] != versions and torch.equal(cache, want)
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_dynamic")
    torch.library.opcheck(
        torch.ops.xeflash.write_to_cache.default, (*x, cache[0].clone(), cache[1].clone(), slots), test_utils=tests
    )


X, CACHE = torch.zeros(4, HEADS, 64), torch.zeros(PAGES, PAGE, HEADS, 64)
ROOM = torch.zeros(9, PAGES, PAGE, HEADS, 64)
FP8 = {name: torch.zeros(PAGES, PAGE, HEADS, 64).to(torch.float8_e4m3fn) for name in ("k_cache", "v_cache")}
REFUSED = {
    "capacity": ({"slots": torch.tensor([0, 60])}, ValueError, "slots must be below 60, the rows of all pages, or negative to be left out, got 60 at [1]"),
    "slots dtype": ({"slots": torch.tensor([0.0])}, TypeError, "slots must be int64 or int32, got float32"),
    "slots shape": ({"slots": torch.zeros(5).int()}, ValueError, "slots must have one dimension of at most 4, the tokens of k, got [5]"),
    "slots none": ({"slots": None}, TypeError, "slots must be a torch tensor"),
    "k dims": ({"k": X[None]}, ValueError, "k must have 3 dimensions, got 4"),
    "k dtype": ({"k": X.int()}, TypeError, "k must be float32, float16 or bfloat16, got int32"),
    "v dtype": ({"v": X.half()}, TypeError, "v must have the dtype of k (float32), got float16"),
    "v tokens": ({"v": X[:3]}, ValueError, "v must have the tokens and heads of k [4, 3], got [3, 3, 64]"),
    "cache dtype": ({"k_cache": CACHE.half()}, TypeError, "k_cache must have the dtype of k (float32), float8_e4m3fn, float8_e5m2 or int8, got float16"),
    "caches' dtypes": ({"v_cache": FP8["v_cache"]}, TypeError, "v_cache must have the dtype of k_cache (float32), got float8_e4m3fn"),
    "cache dims": ({"k_cache": CACHE[0]}, ValueError, "k_cache must have 4 dimensions, got 3"),
    "cache heads": ({"k_cache": CACHE[:, :, :2]}, ValueError, "k_cache must have shape [pages, page, 3, 64], got [5, 12, 2, 64]"),
    "v_cache pages": ({"v_cache": ROOM[1, :4]}, ValueError, "v_cache must have shape [5, 12, 3, 64], got [4, 12, 3, 64]"),
    "cache strides": ({"k_cache": torch.zeros(PAGES, PAGE, HEADS, 128)[..., ::2]}, ValueError, "k_cache must have a contiguous last dimension, got stride 2"),
    "one cache": ({"v_cache": CACHE}, ValueError, "k_cache must not share memory with v_cache"),
    "gradients": ({"k": X.clone().requires_grad_()}, NotImplementedError, "k must not require grad"),
    "scale of floats": ({"k_scale": 1.0}, ValueError, "k_scale must be None unless k_cache is int8 or an 8-bit float"),
    "scale zero": ({**FP8, "v_scale": 0.0}, ValueError, "v_scale must be positive and finite in float32, got 0.0"),
    "scale large": ({**FP8, "v_scale": 10**400}, ValueError, "v_scale must be positive and finite in float32, got 1000"),
    "scale bool": ({**FP8, "k_scale": True}, TypeError, "k_scale must be a number or an array, got True (bool)"),
    "scale text": ({**FP8, "k_scale": "1"}, TypeError, "k_scale must be a torch tensor"),
    "scale shape": (
        {**FP8, "k_scale": torch.ones(5), "v_scale": torch.ones(5)}, ValueError,
        "k_scale must be a number, or fp32 of one element, per head [3], per token and head [2, 3], or per row and head "
        "of k_cache [5, 12, 3], got [5]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refuses_with_the_reason(name):
    changes, error, text = REFUSED[name]
    arguments = {"k": X, "v": X, "k_cache": CACHE, "v_cache": ROOM[0], "slots": torch.tensor([0, 1])} | changes
    with pytest.raises(error) as found:
        xeflash.write_to_cache(**arguments)
    assert str(found.value).startswith("write_to_cache: " + text), found.value


def test_a_cache_that_is_read_only_is_refused():
    x, cache = np.zeros((4, HEADS, 64), np.float32), np.zeros((2, PAGES, PAGE, HEADS, 64), np.float32)
    cache.flags.writeable = False
    with pytest.raises(ValueError, match="^write_to_cache: k_cache must be writable, got one that is read-only"):
        xeflash.write_to_cache(x, x, *cache, np.array([1]))
