"""Gradients by every public function against float64 autograd of the plain formula (gradients.py), on the CPU and on GPUs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
import xeflash
from axes import HEADS, WINDOWS
from cover import with_wide
from gradients import random_kernel, random_spec, random_variant
from memory import SMALL_LAYOUTS
from pairwise import pairwise
from run_report import kernels_of_this_test
from specs import gradient, run
from tolerance import dtype_name
from xeflash import _core
from xeflash.selftest.attention.spec import Spec, is_possible
from xeflash.selftest.tolerance import ulp
from xeflash.tune.table import schedule

SIZES = [(127, 127), (23, 300), (300, 23), (1, 127), (0, 23), (23, 0)]
KERNELS = [("fp32", 8, 8), ("fp32", 64, 64), ("fp32", 111, 59), ("bf16", 13, 13), ("bf16", 64, 64)]
KERNELS += [("bf16", 192, 128), ("bf16", 576, 512), ("fp16", 40, 40), ("fp16", 128, 128)]
BROADCASTS = ["bhqk", "1hqk", "b11k", "1hq1", "k"]


# ---- cases --------------------------------------------------------------------------------------

CHOICES: dict[str, Sequence[Any]] = {
    "kernel": KERNELS,
    "sizes": SIZES,
    "variant": ["plain", "softcap", "alibi", "mask", "bias", "dropout", "curve"],
    "entry": ["attention", "func", "varlen"],
    "window": WINDOWS[:5],
    "top_left": [False, True],
    "broadcast": BROADCASTS,
    "heads": HEADS,
    "slopes": ["h", "bh"],
    "sinks": [False, True],
    "scale": [None, 0.3],
    "layout": list(SMALL_LAYOUTS),
    "layout_of_dout": ["bshd", "expanded", "bhsd", "odd"],
    "dlse": [False, True],
}


def kernels_of(case: Spec) -> Any:
    """What they are compiled for, about."""
    return case.dtype, case.dims, case.variant, case.rows < 64, case.keys < 64


def spec_from(kernel: tuple[str, int, int], sizes: tuple[int, int], window: str, top_left: bool, **more: Any) -> Spec:
    return gradient(*kernel, rows=sizes[0], keys=sizes[1], window=window + "-tl" * top_left, **more)


def cases_of(choices: dict[str, Sequence[Any]], **more: str) -> list[Spec]:
    """Every pair of choices."""
    rows = pairwise(
        choices, lambda row: is_possible(spec_from(**row, **more)), lambda row: kernels_of(spec_from(**row, **more))
    )
    return [spec_from(**row, **more) for row in rows]


PAIRWISE = cases_of(CHOICES)

# The default set: each type with each feature takes three sets of kernels, as features go together. A bias and ALiBi's slopes
# have the slopes of what follows them. What is plain, and a mask, other tests have, too.
MIXED = "softcap+alibi+bias+curve"
OF_TYPES = {"fp32": (111, 59), "bf16": (192, 128), "fp16": (40, 40)}
COMPILED = [((dtype, 64, 64), variant) for dtype in OF_TYPES for variant in ("plain", "mask")]
COMPILED += [((dtype, *dims), f"{MIXED}+dropout") for dtype, dims in OF_TYPES.items()]
OTHERS = {name: values for name, values in CHOICES.items() if name not in ("kernel", "variant")}
OTHERS["sizes"] = [(127, 127), (300, 70), (70, 300), (23, 0)]  # tiles of one height


def case_of(row: dict[str, Any]) -> Spec:
    kernel, variant = row["compiled"]
    return spec_from(kernel, variant=variant, **{name: row[name] for name in OTHERS})


def is_wanted(row: dict[str, Any]) -> bool:
    """Without keys there are no masks and no biases, and so other kernels. A gradient of a bias in 16 bits is of one type."""
    (dtype, *_), variant = row["compiled"]
    whole = row["broadcast"] in ("bhqk", "1hqk")
    wanted = "bias" not in variant or {"fp32": True, "bf16": not whole, "fp16": whole}[dtype]
    return is_possible(case_of(row)) and wanted and (row["sizes"][1] > 0 or (dtype, variant) == ("fp32", "plain"))


DEFAULT = [case_of(row) for row in pairwise({"compiled": COMPILED} | OTHERS, is_wanted)]


@pytest.mark.parametrize("case", DEFAULT, ids=lambda case: case.id)
def test_gradients_match_autograd_of_the_formula(case: Spec) -> None:
    run(case)


MIXTURES = [
    gradient(
        "bf16", rows=23, keys=300, heads=(3, 1), window="causal", variant=MIXED, broadcast="b11k", sinks=True, dlse=True
    ),
    gradient("fp32", 111, 59, rows=300, keys=23, variant="alibi+bias+dropout", broadcast="1hq1", sinks=True),
]


@pytest.mark.wide
@pytest.mark.parametrize("case", [*PAIRWISE, *MIXTURES], ids=lambda case: case.id)
def test_gradients_match_for_every_pair_of_choices(case: Spec) -> None:
    run(case)


# Simulated GPUs take seconds for what a card does in microseconds: fewer kernels, head dims in steps of 8, few rows.
CHOICES_ON_GPU = CHOICES | {
    "kernel": [("fp32", 8, 8), ("fp32", 64, 64), ("bf16", 64, 64), ("bf16", 192, 128), ("bf16", 256, 256)]
    + [("fp16", 40, 40), ("fp16", 128, 128)],
    "sizes": [(23, 63), (63, 23), (1, 40), (70, 70), (23, 0)],
    "heads": [(3, 1), (2, 2)],
}
PAIRWISE_ON_GPU = cases_of(CHOICES_ON_GPU, kind="xpu")
WIDE_ON_GPU = [
    gradient("bf16", 64, 64, rows=70, keys=70, window="causal", variant="bias", broadcast="b11k", kind="xpu"),
    # dg2 has fewer tiles in a work-group for these
    gradient("bf16", 320, 320, rows=40, keys=40, window="causal", kind="xpu"),
    gradient("fp32", 160, 160, rows=40, keys=40, window="causal", kind="xpu"),
    # K and V of unequal width in shared memory, each with a place of its own; these two are dealt to dg2
    gradient("fp16", 192, 128, rows=40, keys=40, window="causal", variant="softcap", kind="xpu"),
    gradient("bf16", 80, 256, rows=40, keys=40, window="causal", variant="alibi", kind="xpu"),
    gradient("bf16", 256, 80, rows=40, keys=40, window="causal", kind="xpu"),  # with more than 32 keys, dQ spills
]
WIDE_ON_GPU += PAIRWISE_ON_GPU[::12]

# Each type with each variant, which dealing.py deals so that each device has all variants and all types. What kernels are
# compiled for comes in turn, and every other choice meets every kernel.
VARIANTS_ON_GPU = ("plain", MIXED, "alibi+mask+dropout")
DIMS_ON_GPU = {
    "fp32": [(64, 64), (8, 8), (40, 40)],
    "bf16": [(64, 64), (64, 64), (192, 128)],
    "fp16": [(256, 256), (40, 40), (128, 128)],
}
SIZES_ON_GPU = [(23, 63), (63, 23), (1, 40), (70, 70)]
COMPILED_ON_GPU = [
    {
        "kernel": (dtype, *dims),
        "variant": VARIANTS_ON_GPU[i],
        "sizes": SIZES_ON_GPU[(i + j) % len(SIZES_ON_GPU)],
        "heads": ((3, 1), (2, 2))[(i + j) % 2],
        "layout": SMALL_LAYOUTS[(i + j) % len(SMALL_LAYOUTS)],
        "layout_of_dout": ("bshd", "expanded", "bhsd", "odd")[(i + 2 * j) % 4],
        "sinks": i == 1,
    }
    for j, (dtype, all_dims) in enumerate(DIMS_ON_GPU.items())
    for i, dims in enumerate(all_dims)
]
OTHERS_ON_GPU = {name: CHOICES[name] for name in ("window", "entry", "dlse")}
OTHERS_ON_GPU |= {"compiled": COMPILED_ON_GPU, "broadcast": ["bhqk", "1hqk", "b11k"]}


def case_on_gpu(row: dict[str, Any]) -> Spec:
    others = {name: value for name, value in row.items() if name != "compiled"}
    return spec_from(**row["compiled"], **others, top_left=False, kind="xpu")


DEFAULT_ON_GPU = [case_on_gpu(row) for row in pairwise(OTHERS_ON_GPU, lambda row: is_possible(case_on_gpu(row)))]


@pytest.mark.gpu
@pytest.mark.xpu
@pytest.mark.parametrize("case", with_wide([*DEFAULT_ON_GPU, *WIDE_ON_GPU], DEFAULT_ON_GPU))
def test_gradients_match_on_a_gpu(xpu: str, case: Spec) -> None:
    run(case)


@pytest.mark.long
@pytest.mark.gpu
@pytest.mark.xpu
@pytest.mark.parametrize("case", [case for i, case in enumerate(PAIRWISE_ON_GPU) if i % 12], ids=lambda case: case.id)
def test_gradients_match_on_a_gpu_long(xpu: str, case: Spec) -> None:
    run(case)


# ---- cases at random ----------------------------------------------------------------------------

USUAL = [
    {"dtype": dtype, "dim": dim} for dtype, dim in (("fp32", 64), ("bf16", 64), ("fp16", 40))
]  # in the long set there are any


@pytest.mark.wide  # each takes three kernels or more
@pytest.mark.parametrize("seed", range(6))
def test_gradients_of_a_random_call(seed: int) -> None:
    random = Random(seed)
    run(random_spec(random, lambda: random.choice(USUAL) | {"variant": random_variant(random)}))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1000, 2000))
def test_gradients_of_many_random_calls(seed: int) -> None:
    random = Random(seed)
    run(random_spec(random, lambda: random_kernel(random)))


@pytest.mark.long
@pytest.mark.gpu
@pytest.mark.xpu
@pytest.mark.parametrize("seed", range(1000, 1200))
def test_gradients_of_random_calls_on_a_gpu(xpu: str, seed: int) -> None:
    random = Random(seed)
    run(random_spec(random, lambda: random_kernel(random, "xpu"), kind="xpu"))


# ---- one pass -----------------------------------------------------------------------------------


def algorithms() -> set[str]:
    """Those of the kernels that this test has asked for."""
    return {next(x for x in name.split("-") if x.startswith("flash")) for name in kernels_of_this_test()}


def test_heads_for_each_core_are_done_in_one_pass() -> None:
    """With the gradients that kernels for dQ and for dK and dV give to a head that is alone."""
    cores = os.sysconf("SC_NPROCESSORS_CONF")
    if cores == 1:
        pytest.skip("one core takes one pass for a single head, too")
    # AMX takes two passes in bf16, which are all its own products.
    dtype = torch.bfloat16 if schedule(_core.arch_of(torch.empty(1), "test", "cpu")).one_pass_bf16 else torch.float16
    rows, keys, dim = 100, 131, 64
    shapes = [(cores, 2, rows, dim), (cores, 1, keys, dim), (cores, 1, keys, dim)]
    q, k, v = (torch.randn(shape).to(dtype).requires_grad_() for shape in shapes)
    dout = torch.randn(q.shape).to(q.dtype)

    def gradients(batch: slice) -> tuple[torch.Tensor, ...]:
        out = xeflash.attention(q[batch], k[batch], v[batch], is_causal=True, enable_gqa=True)
        return torch.autograd.grad(out, (q, k, v), dout[batch])

    together = gradients(slice(None))
    assert algorithms() == {"flash_fwd", "flash_bwd"}
    apart = [gradients(slice(b, b + 1)) for b in range(cores)]
    assert algorithms() >= {"flash_bwd_dq", "flash_bwd_dkv"}
    for name, dx, parts in zip("qkv", together, zip(*apart, strict=True), strict=True):
        error = float((dx.double() - sum(part.double() for part in parts)).norm() / dx.double().norm())
        assert error < ulp(1.0, dtype_name(q)), f"d{name}: {error:.2g}"


# ---- at the ends ---------------------------------------------------------------------------------


def test_slopes_of_no_batch_have_a_gradient_of_zero() -> None:
    slopes = torch.ones(2, requires_grad=True)
    for _ in range(5):
        torch.full((2,), 7.0)  # memory that has held something before
        q, k, v = (torch.zeros(0, 5, 2, 64, requires_grad=True) for _ in "qkv")
        out = xeflash.flash_attn_func(q, k, v, alibi_slopes=slopes)
        (found,) = torch.autograd.grad(out.sum(), [slopes])
        assert torch.equal(found, torch.zeros(2))


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("xpu", marks=[pytest.mark.gpu, pytest.mark.xpu, pytest.mark.wide])], indirect=True
)
@pytest.mark.parametrize("hidden", [torch.finfo(torch.float32).min, -1e9, -1e30])
def test_a_row_that_an_additive_mask_hides_spoils_no_gradient(device: str, hidden: float) -> None:
    generator = torch.Generator().manual_seed(3)
    q, k, v, dout = (torch.randn(1, 2, 7, 64, generator=generator, device="cpu") for _ in range(4))
    mask = torch.zeros(7, 7, device="cpu")
    mask[:2] = hidden
    there = [x.to(device).requires_grad_() for x in (q, k, v)]
    found = torch.autograd.grad(xeflash.attention(*there, mask.to(device)), there, dout.to(device))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # scores are rounded in fp32 here, too
        out = torch.nn.functional.scaled_dot_product_attention(*leaves, mask)
    for got, want in zip(found, torch.autograd.grad(out, leaves, dout), strict=True):
        torch.testing.assert_close(got.cpu(), want, rtol=0, atol=1e-5)
