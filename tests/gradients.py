"""Gradients of a Spec: `run` takes them by its function, and checks them against float64 autograd of the formula.

    max |got - want|  <=  2 e + ulp(max |want|),    e = max(max |torch - want|, max |moved - want|, ulp32(max |want|))
    |got - want|_2    <=  2 e + ulp(1) |want|_2,    e = max(|torch - want|_2, |moved - want|_2)

`moved` are the gradients in float64 where scores are off by what fp32 makes them off (tolerance.py): by 2^-23 of the
size of a score before cancellation, or of the LSE, which is taken from it; and by what exp2 is off by: in 16 bits it has
few terms, and is right to a small part of an ulp; and Delta = rowsum(dO O) is off by what fp32 makes a sum of its terms
off, and as O is: up to half an ulp, as P was rounded, and in fp32 half of one more, as what rounding takes from O is kept
in 16 bits only; and P is made from the LSE, which is kept in fp32, of such exp2: so it scales the weights of a row, which
a softmax would make up for. All at random: the largest of DRAWS counts.
`torch` is autograd of the formula as PyTorch computes it in the dtype under test: scores and softmax in fp32,
probabilities cast to the dtype, second product in the dtype; ulp is the spacing of a gradient's own dtype, and what it
adds is the rounding of the result and of one factor. On a GPU exp2 is the hardware's, right to 2^-21.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import torch
from arrays import DTYPES, ArraysOf
from axes import HEADS, ODD_DIMS, STEPS_OF_8, WINDOWS
from memory import SMALL_LAYOUTS
from tolerance import dtype_name, torch_formula
from xeflash.selftest.arrays import TorchArrays
from xeflash.selftest.attention.drawn import Drawn, draw
from xeflash.selftest.attention.spec import Spec, is_possible
from xeflash.selftest.tolerance import GPU_MATH, SCORES, ulp

DRAWS = 3
LOST = 2.0**26  # times a score: fp32 has no bit left for it beside such a number, nor for twice of it
FAR_LSE = 512.0  # P is made from larger ones in a way that does not round them
EXP2 = {"fp32": 0.0, "fp16": 2.6e-6, "bf16": 7.5e-5}  # what the CPU's, of few terms, is right to
LEAST = 2.0**-126  # below it fp32 may be flushed to 0
LEARNED = ("q", "k", "v", "attn_mask", "alibi_slopes", "s_aux", "near")
Tensors = dict[str, torch.Tensor]


# ---- autograd of the formula --------------------------------------------------------------------


class Roundings:
    """What fp32 makes of scores, see above: it forgets what a bias is too large for; with `moved`, directions at random."""

    def __init__(self, dtype: str, bias: Any = None, moved: torch.Generator | None = None) -> None:
        self.dtype, self.bias, self.moved = dtype, bias, moved
        self.lost, self.is_capped = torch.zeros((), dtype=torch.bool), False

    def __call__(self, step: str, s: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
        still = s.detach()
        if step == "mask":
            if self.bias is None or not s.shape[-1]:
                return s
            bias = self.bias.detach().to(s.dtype)
            self.lost = (bias.abs() > LOST * still.abs().amax(-1, keepdim=True)) & bias.isfinite()
            return torch.where(self.lost, s - still, s)
        if self.moved is None or not s.shape[-1]:
            return s
        if step == "softcap":
            self.is_capped = True
            return s + direction_like(s, self.moved) * SCORES * size
        lse = torch.logsumexp(still, -1, keepdim=True)
        size = still.abs().maximum(lse.abs()).maximum(still.abs() if self.is_capped else size).nan_to_num(posinf=0.0)
        if self.lost.dim():  # of keys; a sink is a column more
            lost = torch.nn.functional.pad(self.lost, (0, s.shape[-1] - self.lost.shape[-1]))
            size = size.masked_fill(lost, 0.0)
        return s + direction_like(s, self.moved) * (SCORES * size + EXP2[self.dtype])


def gradients_of(drawn: Drawn, given: Tensors, moved: torch.Generator | None = None) -> Tensors:
    """By autograd of the formula, in the dtypes given; `moved`: the directions in which roundings go."""
    spec = drawn.spec
    leaves = {name: given[name].detach().clone().requires_grad_() for name in learned_of(drawn)}
    results, upstream = [], []
    for rows, q, k, v, f in drawn.by_sequence(given | leaves):
        bias = f.mask if "attn_mask" in leaves else None
        out, lse = torch_formula(q, k, v, f, at=Roundings(spec.dtype, bias, moved))[:2]
        out, lse, dout = out[0].transpose(0, 1), lse[0], given["dout"][rows]
        dlse = given["dlse"][:, rows] if spec.dlse else None
        if moved:
            dout, dlse = upstream_moved(spec.dtype, out.detach(), lse.detach(), dout, dlse, moved)
        results += [out, lse]
        upstream += [dout.to(out.dtype), None if dlse is None else dlse.to(lse.dtype)]
    results, upstream = zip(*((x, dx) for x, dx in zip(results, upstream, strict=True) if dx is not None), strict=True)
    found = torch.autograd.grad(results, list(leaves.values()), upstream, allow_unused=True)
    return {
        name: torch.zeros_like(x) if dx is None else dx for (name, x), dx in zip(leaves.items(), found, strict=True)
    }


def upstream_moved(
    dtype: str, out: torch.Tensor, lse: torch.Tensor, dout: torch.Tensor, dlse: Any, moved: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of (S, H, D) and (H, S): Delta moves dS as a gradient of the LSE does, and weights that are scaled are as a dO and a
    dLSE that are."""
    off = (2 * torch.rand(out.shape, generator=moved, dtype=out.dtype) - 1) * off_by(out, dtype)
    sums = (out * dout).abs().sum(-1)
    delta = (off * dout).sum(-1) + direction_like(sums, moved) * SCORES * sums
    lse_error = SCORES * lse.abs().nan_to_num(posinf=0.0).clamp(max=FAR_LSE) + EXP2[dtype]
    kept = 1 + direction_like(lse, moved) * lse_error
    return dout * kept.mT[..., None], ((0 if dlse is None else dlse) - delta.mT) * kept


def learned_of(drawn: Drawn) -> list[str]:
    """What has a gradient: of captures, whose gradients have kernels of their own, those of one variant."""
    spec = drawn.spec
    fixed = [*["attn_mask"] * (spec.masks == "bool"), *["near"] * (not spec.has("slope"))]
    return [name for name in LEARNED if name in drawn.values and name not in fixed]


def direction_like(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """1 or -1 for each element, at random."""
    return 2 * torch.randint(0, 2, x.shape, generator=generator) - 1


def off_by(out: torch.Tensor, dtype: str) -> torch.Tensor:
    """What each element of an output in float64 is off by at most, see above: an ulp in fp32, else half of one.

    What rounding took is kept times 2^8, in the type itself: of fp16's least numbers no more than that is left.
    """
    ulps = torch.exp2(torch.frexp(out).exponent.double() - 1) * torch.finfo(DTYPES[dtype]).eps
    if dtype == "fp32":
        return ulps
    kept = torch.finfo(DTYPES[dtype])
    return (ulps / 2).clamp(min=kept.tiny * kept.eps / 2 * 2.0**-8)


def check(what: str, got: Any, want: torch.Tensor, by_torch: Any, moved: list[torch.Tensor], on_gpu: bool) -> None:
    """The rule on top of this file."""
    assert got.shape == want.shape and got.dtype == by_torch.dtype, f"{what}: {got.dtype} of {list(got.shape)}"
    if not want.numel():
        return
    dtype = dtype_name(by_torch)
    error, error_of_torch, *by_scores = (x.double() - want for x in (got, by_torch, *moved))
    assert error.isfinite().all(), f"{what}: {int((~error.isfinite()).sum())} of {error.numel()} are not finite"
    largest = float(want.abs().max())
    more = GPU_MATH * 8 if on_gpu else 0.0
    farthest, by_others = float(error.abs().max()), [float(x.abs().max()) for x in (error_of_torch, *by_scores)]
    limit = 2 * max(*by_others, ulp(largest, "float32")) + ulp(largest, dtype) + more * largest
    limit = max(limit, LEAST)
    worst = int(error.abs().argmax())
    values = [float(x.flatten()[worst]) for x in (got, want)]
    assert farthest <= limit, (
        f"{what}: element {worst}, got {values[0]!r}, want {values[1]!r}, error {farthest:.3g}, limit {limit:.3g}; "
        f"of torch, and moved: {by_others}"
    )
    length, by_others = float(error.norm()), [float(x.norm()) for x in (error_of_torch, *by_scores)]
    limit = max(2 * max(by_others) + (ulp(1.0, dtype) + more) * float(want.norm()), LEAST * want.numel())
    assert length <= limit, f"{what}: error {length:.3g} in L2, limit {limit:.3g}; of torch, and moved: {by_others}"


# ---- a call ---------------------------------------------------------------------------------------


def gradients_twice(
    drawn: Drawn, put: dict[str, Any], function: Callable[..., Any] | None = None
) -> tuple[Tensors, Tensors]:
    """By autograd of the call, of the Spec's function or of another one, with respect to all that is asked for."""
    spec = drawn.spec
    asked = [name for name in learned_of(drawn) if name not in spec.fixed.split("+")]
    leaves = {name: put[name].detach().requires_grad_() for name in asked}
    result = drawn.call(put | leaves, function)
    results, into = (result[:2], [put["dout"], put["dlse"]]) if spec.dlse else ([result], [put["dout"]])
    found = [torch.autograd.grad(results, list(leaves.values()), into, retain_graph=again) for again in (True, False)]
    first, again = (dict(zip(asked, dxs, strict=True)) for dxs in found)
    return first, again


def tensors_of(drawn: Drawn) -> tuple[Tensors, Tensors]:
    """What was drawn, in its own types, and in float64."""
    given = {name: TorchArrays("cpu").put(x) for name, x in drawn.values.items()}
    return given, {name: x.double() if x.is_floating_point() else x for name, x in given.items()}


def judge(
    drawn: Drawn, found: Tensors, again: Tensors, generator: torch.Generator, draws: int = DRAWS, on_gpu: bool = False
) -> None:
    """The gradients that are asked for, taken twice, against autograd's."""
    given, wide = tensors_of(drawn)
    want, by_torch = gradients_of(drawn, wide), gradients_of(drawn, given)
    moved = [gradients_of(drawn, wide, generator) for _ in range(draws)]
    for name, dx in found.items():
        what, got = f"{drawn.spec.id} d{name}", drawn.together(dx.cpu()) if name in ("q", "k", "v") else dx.cpu()
        check(what, got, want[name], by_torch[name], [m[name] for m in moved], on_gpu or dx.is_xpu)
        assert torch.equal(dx, again[name]), f"{what}: bits change"


def run(spec: Spec) -> None:
    drawn = draw(spec)
    found = gradients_twice(drawn, drawn.put(ArraysOf(spec)))
    judge(drawn, *found, torch.Generator().manual_seed(sum(map(ord, spec.id))))


# ---- at random ----------------------------------------------------------------------------------

ROWS = (1, 2, 5, 7, 8, 9, 15, 16, 17, 23, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 0)
SIDES = (-1, 0, 1, 5, 40)


def random_kernel(random: Random, kind: str = "torch") -> dict[str, Any]:
    """Of any type, head dims and variant."""
    dims = STEPS_OF_8 if kind == "xpu" else STEPS_OF_8 + ODD_DIMS
    dim = random.choice(dims)
    dim_v = random.choice(dims) if random.random() < 0.3 else 0
    return {"dtype": random.choice(list(DTYPES)), "dim": dim, "dim_v": dim_v, "variant": random_variant(random)}


def random_variant(random: Random) -> str:
    names = [name for name in ("softcap", "alibi", "curve") if random.random() < 0.2]
    names += random.choices((["bias"], ["mask"], ["dropout"], []), (2, 1, 1, 4))[0]
    return "+".join(names) or "plain"


def random_spec(random: Random, compiled: Callable[[], dict[str, Any]], entry: str = "", kind: str = "torch") -> Spec:
    """Any that the function takes, for kernels that are compiled for what is drawn by `compiled`."""

    def chance(p: float) -> bool:
        return random.random() < p

    while True:
        window = random.choice((*WINDOWS[:5], f"{random.choice(SIDES)},{random.choice(SIDES)}"))
        spec = Spec(
            **compiled(), grad=True, kind=kind, rows=random.choice(ROWS), keys=random.choice(ROWS), heads=random.choice(HEADS),
            entry=entry or random.choice(("attention", "func", "varlen")), window=window + "-tl" * chance(0.2),
            broadcast=random.choice(("bhqk", "1hqk", "b11k", "1hq1", "k", "b1qk", "bh1k", "qk", "1111")),
            slopes="bh" if chance(0.3) else "h", sinks=chance(0.3), scale=random.choice((None, None, 0.3, -0.2, 1.0)),
            layout=random.choice(SMALL_LAYOUTS), layout_of_dout=random.choice(("bshd", "expanded", "bhsd", "odd")),
            dlse=chance(0.4), values=random.choices(("normal", "large", "small", "zero", "sparse"), (10, 1, 1, 1, 1))[0],
        )  # fmt: skip
        if is_possible(spec):
            break
    learned = [
        *"qkv",
        *("attn_mask",) * spec.has("bias"),
        *("alibi_slopes",) * spec.has("alibi"),
        *("s_aux",) * spec.sinks,
    ]
    fixed = [name for name in learned if chance(0.5)] if chance(0.3) else []
    return replace(spec, fixed="+".join(fixed if len(fixed) < len(learned) else fixed[1:]))
