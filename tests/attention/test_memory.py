"""Memory that must not be read or written, strides and addresses of every kind."""

import numpy as np
import pytest
import torch
import xeflash
from arrays import from_array, to_array
from cover import few
from memory import sparse
from plain import call, check_rows_first, make, make_rows_first
from tolerance import check_attention, check_sequences
from xeflash.selftest.reference import Features

NAN = float("nan")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


# ---- memory that belongs to others --------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [1, 5, 70])
def test_keys_past_the_used_ones_are_never_read(dtype, rows):
    lengths_q, lengths_k, used = [rows, min(rows, 3), rows], [100, 65, 127], [37, 0, 126]
    cu_q, cu_k = (torch.tensor([0, *n]).cumsum(0).int() for n in (lengths_q, lengths_k))
    q = torch.randn(sum(lengths_q), 4, 64).to(dtype)
    k, v = (torch.full((sum(lengths_k), 2, 64), NAN, dtype=dtype) for _ in range(2))
    for first, n in zip(cu_k, used, strict=False):
        k[first : first + n], v[first : first + n] = (torch.randn(n, 2, 64).to(dtype) for _ in range(2))
    out, lse, _ = xeflash.flash_attn_varlen_func(
        *(q, k, v, cu_q, cu_k, rows, 127),
        causal=True,
        return_attn_probs=True,
        seqused_k=torch.tensor(used, dtype=torch.int32),
    )
    check_sequences("unused", (q, k, v), (cu_q, cu_k), Features(window=(-1, 0)), out, lse, used)


@pytest.mark.parametrize("dtype", few(DTYPES, torch.bfloat16), ids=str)
@pytest.mark.parametrize("rows", few([1, 23, 70], 23, 70))
def test_neighbours_of_the_inputs_are_never_used(dtype, rows):
    """Every array is cut out of NaN: before, behind and between rows."""

    def cut(x):
        around = torch.full([n + 2 for n in x.shape], NAN, dtype=dtype)
        return around[1:-1, 1:-1, 1:-1, 1:-1].copy_(x)

    q, k, v = (cut(x) for x in make(rows, 101, dim=59, dim_v=59, dtype=dtype))
    out, lse = call(q, k, v)
    check_attention("cut out", q, k, v, Features(), out, lse)


@pytest.mark.parametrize("dtype", few(DTYPES, torch.bfloat16), ids=str)
@pytest.mark.parametrize("rows", few([1, 23, 70], 23, 70))
def test_nothing_is_written_around_out(dtype, rows):
    q, k, v = make(rows, 101, dim=59, dim_v=59, dtype=dtype)
    guard = 7.0
    around = torch.full((4, 6, rows + 2, 59 + 3), guard, dtype=dtype)
    out = around[1:-1, 1:-1, 1:-1, 1:-2]
    result, lse = call(q, k, v, out=out)
    assert result.data_ptr() == out.data_ptr()
    check_attention("into out", q, k, v, Features(), out, lse)
    out.fill_(guard)
    assert torch.all(around == guard)


@pytest.mark.wide
@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dim", "dtype"),
    [
        *((dim, dtype) for dim in (8, 16, 24, 40, 56, 72, 104, 136, 200, 264, 320) for dtype in DTYPES[:2]),
        (576, torch.bfloat16),
    ],
    ids=str,
)
def test_nothing_beside_the_arrays_is_touched_on_gpu(gpu, dim, dtype):
    """Each fills an allocation, beyond which the simulator knows no memory."""
    for rows, keys in ((1, 33), (9, 17)):
        qkv = make_rows_first(rows, keys, heads=2, heads_k=1, dim=dim, dim_v=dim, dtype=dtype)
        out = xeflash.flash_attn_func(*(to_array(x, "usm") for x in qkv))
        check_rows_first(f"{dtype} {dim} {rows}", qkv, from_array(out, "usm"), gpu=True)


def test_rows_between_varlen_sequences_are_left_alone():
    """cu_seqlens need not start at 0 or end at the total; what belongs to no sequence is zero or untouched, not NaN."""
    q, k, v = torch.randn(50, 4, 64), torch.randn(60, 2, 64), torch.randn(60, 2, 64)
    cu_q, cu_k = (
        torch.tensor([0, 20, 50], dtype=torch.int32),
        torch.tensor([0, 31, 60], dtype=torch.int32),
    )
    whole = xeflash.flash_attn_varlen_func(q, k, v, cu_q, cu_k, 30, 31)
    one = xeflash.flash_attn_varlen_func(q[20:], k[31:], v[31:], cu_q[:1].repeat(2).add_(torch.tensor([0, 30]).int()),
                                         torch.tensor([0, 29], dtype=torch.int32), 30, 29)  # fmt: skip
    assert torch.equal(whole[20:], one)


# ---- strides and pointers -----------------------------------------------------------------------


def test_strides_beyond_4_gib():
    q, k, v = make(7, 23)
    far = [sparse(x.shape, (2**33 // 4 + 16, 2**31 // 4 + 16, 2**24, 1), x.dtype).copy_(x) for x in (q, k, v)]
    out, lse = call(*far)
    check_attention("far apart", q, k, v, Features(), out, lse)


def test_row_strides_beyond_4_gib_of_decode():
    q, k, v = make(1, 9)
    far = [sparse(x.shape, (64, 128, 2**32 // 4 + 16, 1), x.dtype).copy_(x) for x in (q, k, v)]
    out, lse = call(*far)
    check_attention("far apart", q, k, v, Features(), out, lse)


def test_out_with_strides_beyond_4_gib():
    q, k, v = make(7, 23)
    out = sparse(q.shape, (2**33 // 4 + 16, 2**31 // 4 + 16, 2**24, 1), q.dtype)
    call(q, k, v, out=out)
    check_attention("far apart", q, k, v, Features(), out)


@pytest.mark.parametrize("change", ["last-dim-strided", "transposed", "expanded", "expanded-heads", "flipped"])
def test_views_of_any_strides(change):
    q, k, v = make()
    if change == "last-dim-strided":
        q, k, v = (torch.stack([x, x * NAN], -1).flatten(-2)[..., ::2] for x in (q, k, v))
        assert q.stride(-1) == 2
    elif change == "transposed":
        q, k, v = (x.mT.contiguous().mT for x in (q, k, v))
    elif change == "expanded":
        k, v = (x[:, :, :1].expand(2, 2, 127, 64) for x in (k, v))
    elif change == "expanded-heads":
        k, v = (x[:1, :1].expand(2, 2, 127, 64) for x in (k, v))
    if change == "flipped":
        out, lse = xeflash.attention(*(x.numpy()[:, ::-1, ::-1] for x in (q, k, v)), enable_gqa=True, return_lse=True)
        q, k, v = (x.flip(1, 2) for x in (q, k, v))
        out, lse = torch.from_numpy(out), torch.from_numpy(lse)
    else:
        out, lse = call(q, k, v)
    check_attention(change, q, k, v, Features(), out, lse)


def test_numpy_flipped_last_dimension():
    q, k, v = make()
    out = xeflash.attention(*(x.numpy()[..., ::-1] for x in (q, k, v)), enable_gqa=True)
    check_attention("flipped", q.flip(3), k.flip(3), v.flip(3), Features(), torch.from_numpy(out))


@pytest.mark.parametrize("bytes_off", [1, 2, 3])
def test_numpy_arrays_at_any_address(bytes_off):
    q, k, v = make()

    def move(x):
        memory = np.empty(x.nbytes + 8, np.uint8)
        moved = memory[bytes_off : bytes_off + x.nbytes].view(x.dtype).reshape(x.shape)
        moved[...] = x
        return moved

    out = xeflash.attention(*(move(x.numpy()) for x in (q, k, v)), enable_gqa=True)
    check_attention("unaligned", q, k, v, Features(), torch.from_numpy(out))


def in_records(x):
    """x in an array of records: its strides are no multiple of the element."""
    records = np.zeros(x.shape, np.dtype([("x", x.dtype), ("flag", np.uint8)]))
    records["x"] = x
    return records["x"]


@pytest.mark.parametrize("dim", [64, 1])
def test_elements_of_records(dim):
    q, k, v = make(dim=dim, dim_v=dim)
    out = xeflash.attention(*(in_records(x.numpy()) for x in (q, k, v)), enable_gqa=True)
    assert np.array_equal(out, xeflash.attention(q.numpy(), k.numpy(), v.numpy(), enable_gqa=True))


def test_rows_of_records():
    q, k, v = make()
    records = np.zeros(q.shape[:-1], np.dtype([("row", np.float32, (64,)), ("flag", np.uint8)]))
    records["row"] = q.numpy()
    assert records["row"].strides == (records.strides[0], records.strides[1], 257, 4)
    out = xeflash.attention(records["row"], k.numpy(), v.numpy(), enable_gqa=True)
    check_attention("records", q, k, v, Features(), torch.from_numpy(out))


@pytest.mark.parametrize("name", ["attn_mask", "alibi_slopes", "sinks", "out"])
def test_other_arguments_in_records(name):
    q, k, v = make()
    values = torch.randn({"attn_mask": (63, 127), "out": (2, 4, 63, 64)}.get(name, (4,)))
    names = {"attn_mask": "mask", "alibi_slopes": "alibi", "sinks": "sinks"}
    f = Features(top_left=True).with_(**({} if name == "out" else {names[name]: values}))
    argument = in_records(values.numpy())
    if name == "out":
        with pytest.raises(ValueError, match=r"^attention: out must have a contiguous last dimension"):
            xeflash.attention(*(x.numpy() for x in (q, k, v)), enable_gqa=True, out=argument)
        return
    out = xeflash.attention(*(x.numpy() for x in (q, k, v)), enable_gqa=True, **{name: argument})
    check_attention("records", q, k, v, f, torch.from_numpy(out))


def test_read_only_numpy_inputs(tmp_path):
    q, k, v = (x.numpy() for x in make())
    for x in (q, k, v):
        x.flags.writeable = False
    k.tofile(tmp_path / "k")
    mapped = np.memmap(tmp_path / "k", np.float32, "r", shape=k.shape)
    out = xeflash.attention(q, mapped, v, enable_gqa=True)
    q, k, v = (torch.from_numpy(x.copy()) for x in (q, k, v))
    check_attention("read-only", q, k, v, Features(), torch.from_numpy(np.asarray(out)))
