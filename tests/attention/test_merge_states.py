"""merge_states: parts of the keys give what all of them give."""

import math

import pytest
import torch
import xeflash
from arrays import DTYPES, from_array, is_on_gpu, to_array
from cover import few, few_rows
from plain import check_rows_first
from xeflash.selftest.reference import merged_reference


def draw(dtype, rows, keys, heads=3, dim=64):
    return [torch.randn(2, n, heads, dim).to(DTYPES[dtype]) for n in (rows, keys, keys)]


def part(q, k, v, **options):
    return xeflash.flash_attn_func(q, k, v, return_attn_probs=True, **options)[:2]


# Up to 8 states are merged at a time, in fp32.
@pytest.mark.parametrize("count", [1, 2, 3, 8, 9, 17])
@pytest.mark.parametrize(("dtype", "dim"), few_rows([("fp32", 64), ("bf16", 111), ("fp16", 64)], ("fp32", 64)))
def test_parts_give_the_whole(dtype, dim, count):
    q, k, v = draw(dtype, 23, 301, dim=dim)
    cuts = [slice(301 * i // count, 301 * (i + 1) // count) for i in range(count)]
    # Parts in fp32: rounded to 16 bits they would carry an error of their own.
    states = [part(q.float(), k[:, c].float(), v[:, c].float()) for c in cuts]
    out, lse = xeflash.merge_states(*((o.to(q.dtype) if count == 1 else o, l) for o, l in states))
    check_rows_first("parts", (q, k, v), out.to(q.dtype), lse)


@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize("dtype", few(["fp32", "bf16", "fp16"], "fp32", "bf16"))
def test_rounds_once(dtype, kind):
    check_rounds_once(dtype, kind, 11, 64)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "dim"), few_rows([("fp32", 64), ("bf16", 512), ("fp16", 64)], ("fp32", 64)))
def test_rounds_once_on_gpu(gpu, dtype, dim):
    for count in (1, 2, 8, 9, 19):
        check_rounds_once(dtype, "gpu", count, dim)


def check_rounds_once(dtype, kind, count, dim):
    """The result is the weighted sum of the parts, rounded to the nearest."""
    states = [(torch.randn(2, 5, 3, dim).to(DTYPES[dtype]), torch.randn(2, 3, 5) * 3) for _ in range(count)]
    states[0][1][1, 2, 3:] = -torch.inf  # the row saw none of these keys
    if count > 1:
        states[0][0][1, 3:, 2] = torch.nan
    out, lse = xeflash.merge_states(*(to_array(x, kind) for state in states for x in state))
    parts = (torch.stack(part).double().numpy() for part in zip(*states, strict=True))
    want, want_lse, _ = (torch.from_numpy(x) for x in merged_reference(*parts))
    as_tensor = lambda x: torch.from_numpy(x.astype("float32")) if kind == "numpy" else from_array(x, kind)  # noqa: E731
    unit = {"fp32": 2.0**-24, "bf16": 2.0**-8, "fp16": 2.0**-11}[dtype]
    # The hardware's exponential is off by some 2^-21, the logarithm by 2^-22 of what it gives.
    more = 2.0**-21 if is_on_gpu(kind) else 0.0
    torch.testing.assert_close(as_tensor(out).double(), want, rtol=1.01 * unit + more, atol=1e-6)
    torch.testing.assert_close(as_tensor(lse).double(), want_lse, rtol=more / 2, atol=2e-6)


@pytest.mark.parametrize("empty", [float("inf"), -float("inf")])
def test_parts_without_keys_count_for_nothing(empty):
    check_empty_parts(empty, "torch")


@pytest.mark.gpu
def test_parts_without_keys_count_for_nothing_on_gpu(gpu):
    for empty in (float("inf"), -float("inf")):
        check_empty_parts(empty, "gpu")


def check_empty_parts(empty, kind):
    out, lse = torch.randn(2, 4, 3, 64), torch.randn(2, 3, 4)
    nothing = tuple(to_array(x, kind) for x in (torch.full_like(out, float("nan")), torch.full_like(lse, empty)))
    part = tuple(to_array(x, kind) for x in (out, lse))
    merged, merged_lse = (from_array(x, kind) for x in xeflash.merge_states(nothing, part, nothing))
    assert torch.equal(merged, out)
    torch.testing.assert_close(merged_lse, lse, rtol=1e-6, atol=1e-6)
    merged, merged_lse = (from_array(x, kind) for x in xeflash.merge_states(nothing, nothing))
    assert (merged == 0).all() and (merged_lse == torch.inf).all()


@pytest.mark.parametrize("far", [3e4, 1e38, 3.4e38])
def test_logits_far_apart_do_not_overflow(far):
    o = torch.randn(3, 1, 1, 1, 64)
    lse = torch.tensor([-far, far, 0.0])[:, None, None, None]
    out, merged = xeflash.merge_states(*((o[i], lse[i]) for i in range(3)))
    assert torch.equal(out, o[1]) and merged.item() == lse[1].item()


def test_sums_of_the_largest_values_do_not_overflow():
    largest = torch.finfo(torch.float32).max
    o, lse = torch.full((1, 1, 1, 64), largest * 0.999), torch.zeros(1, 1, 1)
    out, merged = xeflash.merge_states(*[(o, lse)] * 20)
    torch.testing.assert_close(out, o, rtol=1e-6, atol=0)
    assert merged.item() == pytest.approx(math.log(20), rel=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_parts_merge_to_what_all_keys_give_where_numbers_are_not_finite(bad):
    check_not_finite(bad, "torch")


@pytest.mark.gpu
def test_parts_merge_to_what_all_keys_give_where_numbers_are_not_finite_on_gpu(gpu):
    for bad in (float("nan"), float("inf"), -float("inf")):
        check_not_finite(bad, "gpu")


def check_not_finite(bad, kind):
    """In q, k and v; what they spoil is no number in either, the rest is finite. In one of 3 parts, and of 19."""
    for place in range(3):
        arrays = draw("fp32", 5, 38)
        arrays[place][0, 3, 1, 7] = bad
        q, k, v = (to_array(x, kind) for x in arrays)
        whole, whole_lse = (from_array(x, kind) for x in part(q, k, v))
        assert place == 2 or whole_lse[0, 1].isnan().any()
        for step in (13, 2):
            cuts = [slice(first, first + step) for first in range(0, 38, step)]
            states = [part(q, *(to_array(x[:, cut].contiguous(), kind) for x in arrays[1:])) for cut in cuts]
            out, lse = (from_array(x, kind) for x in xeflash.merge_states(*states))
            tolerance = {"rtol": 0, "atol": 1e-5, "equal_nan": True}
            torch.testing.assert_close(out, whole, **tolerance)
            torch.testing.assert_close(lse, whole_lse, **tolerance)


def test_packed_sequences_and_strides():
    o, lse = torch.randn(2, 7, 3, 72)[..., :64], torch.randn(2, 7, 3).transpose(1, 2)
    packed, packed_lse = xeflash.merge_states(o[0], lse[0], o[1], lse[1])
    dense, dense_lse = xeflash.merge_states(o[:1].contiguous(), lse[:1].contiguous(), o[1:], lse[1:])
    assert torch.equal(packed, dense[0]) and torch.equal(packed_lse, dense_lse[0])


def test_a_shared_prefix():
    """Cascade: the prefix is attended by all queries as one sequence, what follows causally."""
    q, k, v = draw("bf16", 9, 70)
    prefix = part(q, k[:, :61], v[:, :61])
    rest = part(q, k[:, 61:], v[:, 61:], causal=True)
    out, lse = xeflash.merge_states(*prefix, *rest)
    want = xeflash.flash_attn_func(q.float(), k.float(), v.float(), causal=True)
    torch.testing.assert_close(out.float(), want, rtol=2**-7, atol=2**-7)


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ([], "states must be out and lse in turn, got 0 arrays"),
        ([torch.zeros(1, 2, 3, 4)], "states must be out and lse in turn, got 1 arrays"),
        ([(torch.zeros(1, 2, 3, 4),)], r"state 0 must be \(out, lse\), got 1 entries"),
        ([torch.zeros(2, 4), torch.zeros(2)], "out 0 must have 3 or 4 dimensions, got 2"),
        ([torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3)], r"lse 0 must have the shape \(batch, heads, rows\)"),
        (
            [torch.zeros(2, 3, 4), torch.zeros(3, 2), torch.zeros(2, 3, 5), torch.zeros(3, 2)],
            r"out 1 must have the shape of out 0 \[2, 3, 4\], got \[2, 3, 5\]",
        ),
    ],
)
def test_refuses_with_the_reason(states, message):
    with pytest.raises(ValueError, match=f"^merge_states: {message}"):
        xeflash.merge_states(*states)


def test_refuses_other_types():
    o, lse = torch.zeros(2, 3, 4), torch.zeros(3, 2)
    with pytest.raises(TypeError, match="^merge_states: lse 0 must be float32, got float16"):
        xeflash.merge_states(o, lse.half())
    with pytest.raises(TypeError, match=r"^merge_states: out 1 must have the dtype of out 0 \(float32\), got float16"):
        xeflash.merge_states(o, lse, o.half(), lse)


@pytest.mark.gpu
def test_parts_of_a_packed_call_give_the_whole_on_gpu(gpu):
    """Rows at odd multiples of 2 bytes, heads outside of rows."""
    q, k, v = draw("fp16", 7, 90)
    states = [part(q, k[:, c], v[:, c]) for c in (slice(33), slice(33, 90))]
    odd = []
    for o, lse in states:
        around = torch.full((14, 4, 67), float("nan"), dtype=o.dtype)
        around[:, :3, 1:65] = o.flatten(0, 1)
        odd += [to_array(around[:, :3, 1:65], "gpu"), to_array(lse.transpose(0, 1).flatten(1), "gpu")]
    out, lse = (from_array(x, "gpu") for x in xeflash.merge_states(*odd))
    check_rows_first("packed", (q, k, v), out.view(2, 7, 3, 64), lse.view(3, 2, 7).transpose(0, 1))


@pytest.mark.gpu
def test_head_dims_that_gpus_do_not_have_are_refused(gpu):
    o, lse = to_array(torch.zeros(2, 3, 12), "gpu"), to_array(torch.zeros(3, 2), "gpu")
    with pytest.raises(NotImplementedError, match="out.head_dim on a GPU must be a multiple of 8, .* got 12"):
        xeflash.merge_states(o, lse)
