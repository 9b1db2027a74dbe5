"""Delta = rowsum(dO O) - dLSE, which gradients of scores are small differences from; and LSEs of rows of more keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import xeflash
from arrays import DTYPES
from cover import few, few_rows
from tolerance import torch_formula
from xeflash.bench.peak import arch_of
from xeflash.selftest.reference import Features
from xeflash.selftest.tolerance import limit_of_probability

ops = torch.ops.xeflash
BSHD = 0  # layout of attention_backward
HEADS, DIM = 2, 64
WORDS = {dtype: word for word, dtype in DTYPES.items()}
GPU_TESTS = ("sees_one_key", "far")
# In 16 bits everywhere; fp32 rounds what weights of 1 come to unless scores are far from 0.
ONE_KEY = [
    (torch.bfloat16, 0.1),
    (torch.bfloat16, 30.0),
    (torch.float16, 0.1),
    (torch.float16, 1e6),
    (torch.float32, 1e6),
]


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator("cpu").manual_seed(seed), device="cpu").to(dtype)


def in_float64(dout: torch.Tensor, *tensors: torch.Tensor, causal: bool = False) -> Any:
    leaves = [x.double().requires_grad_() for x in tensors]
    f = Features(window=(-1, 0) if causal else (-1, -1))
    out = torch_formula(*(x.transpose(1, 2) for x in leaves), f)[0].transpose(1, 2)
    return torch.autograd.grad(out, leaves, dout.double())


def with_rounded_weights(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    """The output in float64 of weights that are rounded to v's type for P V, but not where they are summed."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    each = torch.eye(k.shape[2], dtype=torch.float64, device="cpu").expand(*k.shape[:2], -1, -1)
    P = torch_formula(q.double(), k.double(), each, Features(window=(-1, 0) if causal else (-1, -1)))[0]
    P = P / P.amax(-1, keepdim=True)
    return (P.to(v.dtype).double() @ v.double() / P.sum(-1, keepdim=True)).transpose(1, 2)


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.cpu().double() - want).norm() / want.norm())


@pytest.mark.parametrize("dtype", few([torch.bfloat16, torch.float16], torch.bfloat16), ids=str)
@pytest.mark.parametrize("rows", [1, 70])
def test_gradients_are_those_of_an_output_in_fp32_where_values_have_a_mean(device: str, rows: int, dtype: torch.dtype):
    q, k, v = (normal(1, n, HEADS, DIM, seed=n + i, dtype=dtype) for i, n in enumerate((rows, 70, 70)))
    v = (v.float() + 4).to(dtype)
    dout = normal(1, rows, HEADS, DIM, seed=9, dtype=dtype)
    want = in_float64(dout, q, k, v, causal=rows > 1)
    there, dout_there = [x.to(device).requires_grad_() for x in (q, k, v)], dout.to(device)
    found = torch.autograd.grad(xeflash.flash_attn_func(*there, causal=rows > 1), there, dout_there)

    # Delta of the rounded output, and of a wider one: a gradient of the LSE makes up for the difference.
    given = [x.detach() for x in there]
    out, lse, rng, _ = ops.flash_attn(*given, causal=rows > 1, return_lse=True)

    def gradients(wide: torch.Tensor) -> list[torch.Tensor]:
        dlse = (dout.double() * (out.cpu().double() - wide)).sum(-1).transpose(1, 2).float().contiguous()
        more = (*given, out, lse, rng, BSHD, ["q", "k"])
        return ops.attention_backward(dout_there, dlse.to(device), *more, causal=rows > 1)

    from_rounded = gradients(out.cpu().double())
    from_fp32 = gradients(with_rounded_weights(q, k, v, causal=rows > 1))
    for name, got, rounded, fp32, x in zip("qk", found, from_rounded, from_fp32, want, strict=False):
        assert error(got, x) <= 1.2 * error(fp32, x), f"d{name}"
        assert error(rounded, x) > (1.1 if rows == 1 else 2) * error(got, x), f"d{name}"  # or it says nothing


@pytest.mark.parametrize(
    ("dtype", "scale"), few_rows(ONE_KEY, (torch.bfloat16, 0.1), (torch.float32, 1e6)), ids=lambda x: str(x)
)
@pytest.mark.parametrize("dim", few([64, 40, 128], 64))
def test_a_row_that_sees_one_key_gives_its_scores_a_gradient_of_zero(
    device: str, dim: int, dtype: torch.dtype, scale: float
):
    q, k, v = (normal(1, n, HEADS, dim, seed=n, dtype=dtype).to(device).requires_grad_() for n in (40, 1, 1))
    dout = normal(1, 40, HEADS, dim, seed=9, dtype=dtype).to(device)
    dq, dk = torch.autograd.grad(xeflash.flash_attn_func(q, k, v, softmax_scale=scale), (q, k), dout)
    if arch_of("flash_bwd_dq", WORDS[dtype], device) != "cpu-amx-bf16":
        assert not dq.any() and not dk.any()  # to the last bit: Delta is dP
        return
    # A tile of AMX adds up in an order of its own: each of two sums in fp32 may be off by dim roundings of its terms.
    off = 2 * dim * 2.0**-24 * scale * (dout.float() * v.float()).abs().sum(-1, keepdim=True)
    assert (dq.abs() <= off * k.abs()).all() and (dk.abs() <= (off * q.abs()).sum(1, keepdim=True)).all()


@pytest.mark.parametrize("scale", [0.125, 300.0], ids=["near", "far"])
@pytest.mark.parametrize("dtype", few([torch.float32, torch.bfloat16], torch.float32), ids=str)
def test_parts_of_a_row_add_up_to_its_gradients(device: str, scale: float, dtype: torch.dtype):
    """As context parallel calls them: each part of the keys with the output and the LSE of all."""
    q, k, v, dout = (normal(1, 40, HEADS, DIM, seed=i, dtype=dtype).to(device) for i in range(4))
    halves = [slice(0, 17), slice(17, 40)]

    def backward(part: slice, out: torch.Tensor, lse: torch.Tensor, **more: Any) -> list[torch.Tensor]:
        given = (dout, None, q, k[:, part].contiguous(), v[:, part].contiguous(), out, lse, torch.zeros(0).long(), BSHD)
        return ops.attention_backward(*given, ["q", "k", "v"], softmax_scale=scale, **more)

    out, lse, _, _ = ops.flash_attn(q, k, v, softmax_scale=scale, return_lse=True)
    want = backward(slice(0, 40), out, lse)
    parts = [ops.flash_attn(q, k[:, i], v[:, i], softmax_scale=scale, return_lse=True)[:2] for i in halves]
    merged, merged_lse = xeflash.merge_states(*parts)
    (dq, *first), (more_dq, *second) = (backward(i, out, merged_lse, longer=True) for i in halves)
    # One word holds a far LSE to its last bit, of which the weights of a part are off by so much.
    bits = 2.0**-23 * float(lse.abs().max())
    atol = 1e-6 + 2 * bits + limit_of_probability(str(dtype).removeprefix("torch."))
    torch.testing.assert_close(merged_lse, lse, rtol=0, atol=atol)
    tolerance = 3e-6 + bits if dtype is torch.float32 else 2.0**-7 + bits
    found = [dq + more_dq, *(torch.cat(x, 1) for x in zip(first, second, strict=True))]
    for name, got, x in zip("qkv", found, want, strict=True):
        assert error(got, x.cpu().double()) < tolerance, name
    if scale > 1:  # or else each part takes itself for the whole
        alone = torch.cat([backward(i, out, merged_lse)[2] for i in halves], 1)
        assert error(alone, want[2].cpu().double()) > 0.1
