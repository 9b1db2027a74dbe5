"""matmul_softmax in the tests: the formula in any type, and how far roundings of scores may move it."""

from __future__ import annotations

import math
from typing import Any

import torch
from arrays import is_on_gpu
from tolerance import assert_close
from xeflash.selftest.tolerance import GPU_MATH, SCORES


def reference(
    case: Any, a: torch.Tensor, b: torch.Tensor, bias: Any, dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result in a type, and the scores."""
    b = b.mT if case.b_layout == "kn" else b
    scores = case.scale * (a.to(dtype) @ b.to(dtype).mT)
    scores = scores if bias is None else scores + bias.to(dtype)
    found = scores.log_softmax(-1) if case.log else scores.softmax(-1)
    empty = scores.isneginf().all(-1, keepdim=True)
    return found.masked_fill(empty, -torch.inf if case.log else 0.0), scores


def rounded_scores(case: Any, a: torch.Tensor, b: torch.Tensor, bias: Any, drawn: bool = False) -> torch.Tensor:
    """How far each score may be off, see xeflash.selftest.tolerance. `drawn`: sums have as many roundings as terms."""
    b = b.mT if case.b_layout == "kn" else b
    size = abs(case.scale) * (a.double().abs() @ b.double().abs().mT)
    size = size * (1 + math.sqrt(a.shape[-1]) if drawn else 1.0)
    return SCORES * (size if bias is None else size + bias.double().abs().nan_to_num(posinf=0.0))


def moved_logarithms(scores: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """How far roundings move each score less the logarithm of the sum of its row."""
    p = scores.softmax(-1).nan_to_num(0.0)
    return d + (p * d).square().sum(-1, keepdim=True).sqrt()


def check(case: Any, got: torch.Tensor, a: torch.Tensor, b: torch.Tensor, bias: Any, drawn: bool = False) -> None:
    want, scores = reference(case, a, b, bias)
    other = reference(case, a, b, bias, torch.float32)[0].to(got.dtype)
    assert got.dtype == a.dtype and got.shape == want.shape, f"{got.dtype} {list(got.shape)}, not {list(want.shape)}"
    if not got.numel():
        return
    moved = moved_logarithms(scores, rounded_scores(case, a, b, bias, drawn))
    moved = moved if case.log else scores.softmax(-1).nan_to_num(0.0) * moved
    largest = float(want.abs().nan_to_num(posinf=0.0).max())
    math_of_gpu = GPU_MATH * (1 + largest * 2) if is_on_gpu(case.kind) else 0.0
    size = (largest + case.log) * (1 + math.sqrt(want.shape[-1])) if drawn else largest
    assert_close(str(case), got, want.numpy(), other.double().numpy(), size, float(moved.max()), math_of_gpu)
