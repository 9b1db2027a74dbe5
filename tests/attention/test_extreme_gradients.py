"""Gradients at the ends of a type's range: finite inputs give finite gradients, right wherever PyTorch's are.

A row of a gradient is right if it is within 1e-3 of its largest element, or of 1, of autograd in float64. What autograd
has right in fp32, to half of that and whichever way scores are rounded, is right here, too. In 16 bits twice what
autograd is off by at worst is added: it rounds P, and so O, of which Delta = rowsum(dO O) is made (see gradients.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
import xeflash
from arrays import DTYPES, to_xpu
from cover import few_rows
from gradients import direction_like, off_by
from tolerance import torch_formula
from xeflash.selftest.reference import Features
from xeflash.selftest.tolerance import SCORES

INF = float("inf")
RIGHT = 1e-3
HEADS, HEADS_K, KEYS, DIM = 4, 2, 37, 64
ENDS = (-INF, 1e38, -1e38, 0.5)
LARGE = (1e4, 1e8, 1e12)
MOVED = (False, *(True,) * 8)  # the largest of eight errors at random, of which another may be twice as large
NAMES = {dtype: name for name, dtype in DTYPES.items()}
GENERATOR = torch.Generator()
Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Call:
    """What is asked for, and factors of Q, V and dO, which are normal."""

    q: float = 1.0
    v: float = 1.0
    dout: float = 1.0
    scale: float | None = None
    softcap: float = 0.0
    mask: str = ""  # rows: it hides all of some; padding: keys on the left, and what is ahead of a row
    hidden: float = -INF  # in an additive mask; 0: the least number of the type; -inf: the mask is boolean
    sinks: tuple[float, ...] = ()


CALLS = {
    **{
        f"{label} {mask}": [Call(mask=mask, hidden=value)]
        for mask in ("rows", "padding")
        for label, value in (("lowest", 0.0), ("-1e9", -1e9), ("-1e30", -1e30))
    },
    "queries": [Call(q=size) for size in LARGE],
    "queries and a mask": [Call(q=size, mask="padding", hidden=0.0) for size in LARGE],
    "scale": [Call(q=1e-30, scale=1e30), Call(q=1e-3, scale=1e30), Call(q=1e30, scale=1e-30), Call(scale=1e-38)],
    "softcap": [Call(softcap=3.0, q=size) for size in (1.0, *LARGE)] + [Call(softcap=x) for x in (1e-30, 1e30)],
    "softcap and sinks": [Call(softcap=3.0, q=1e4, sinks=ENDS)],
    "values": [Call(v=1e30, dout=1e-30), Call(v=1e-24, dout=1e24), Call(v=30.0, dout=30.0)],
    "sinks": [Call(sinks=ENDS), Call(sinks=(-INF,) * HEADS)],
    "sinks and a mask": [Call(sinks=ENDS, mask="padding", hidden=0.0)],
    "sinks and hidden rows": [Call(sinks=ENDS, mask=mask) for mask in ("rows", "padding")],
}
# Of the others, which take more kernels, most run in the wide set, and on GPUs nearly all: a simulated one is slow.
EVERY = [(name, dtype, rows) for name in CALLS for dtype in DTYPES for rows in (37, 1)]
DEFAULT = [(name, "fp32", 37) for name in CALLS] + [(name, "fp32", 1) for name in ("lowest padding", "queries")]
DEFAULT += [("queries", "bf16", 37)]
GPU_TESTS = ("queries-bf16-37",)


def seen_by(call: Call, rows: int) -> torch.Tensor:
    if call.mask == "rows":
        return (torch.arange(rows) >= 2)[:, None].expand(rows, KEYS)
    keys, diagonal = torch.arange(KEYS), torch.arange(rows)[:, None] + KEYS - rows
    return (keys >= 5) & (keys <= diagonal)


def draw(call: Call, dtype: str, rows: int) -> tuple[Tensors, torch.Tensor, torch.Tensor | None]:
    """What has a gradient, dO, and a mask; dO, too, has numbers of the type."""
    generator = torch.Generator().manual_seed(rows)

    def normal(*shape: int, size: float = 1.0) -> torch.Tensor:
        most = torch.finfo(DTYPES[dtype]).max
        return (torch.randn(shape, generator=generator) * size).clamp(-most, most).to(DTYPES[dtype])

    leaves = {"q": normal(2, HEADS, rows, DIM, size=call.q), "k": normal(2, HEADS_K, KEYS, DIM)}
    leaves["v"] = normal(2, HEADS_K, KEYS, DIM, size=call.v)
    if call.sinks:
        leaves["sinks"] = torch.tensor(call.sinks)
    mask = seen_by(call, rows) if call.mask else None
    if mask is not None and call.hidden != -INF:
        lowest = torch.finfo(DTYPES[dtype]).min
        hidden = max(call.hidden or lowest, lowest)
        mask = torch.zeros(rows, KEYS).masked_fill(~mask, hidden).to(DTYPES[dtype])
    return leaves, normal(2, HEADS, rows, DIM, size=call.dout), mask


def by_formula(
    call: Call, leaves: Tensors, dout: torch.Tensor, mask: torch.Tensor | None, moved: bool = False
) -> list[torch.Tensor]:
    """Autograd of the formula; `moved`: as roundings may be, at random."""
    leaves = {name: x.detach().requires_grad_() for name, x in leaves.items()}
    q, k, v = (leaves[name] for name in "qkv")
    f = Features(scale=call.scale, softcap=call.softcap, mask=mask, sinks=leaves.get("sinks"))
    if not moved:
        out = torch_formula(q, k, v, f).out
        return list(torch.autograd.grad(out, list(leaves.values()), dout.to(v.dtype)))
    out, lse = torch_formula(q, k, v, f, at=OfProducts())[:2]
    # Delta moves dS as a gradient of the LSE does.
    off = direction_like(out, GENERATOR) * off_by(out.detach(), NAMES[v.dtype])
    dlse = -((off * dout.double()).sum(-1)).to(lse.dtype).masked_fill(lse == INF, 0.0)
    return list(torch.autograd.grad([out, lse], list(leaves.values()), [dout.to(v.dtype), dlse]))


class OfProducts:
    """Roundings of q k: before what comes first behind it."""

    done = False

    def __call__(self, step: str, s: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
        if self.done:
            return s
        self.done = True
        return s + direction_like(s, GENERATOR) * SCORES * size.nan_to_num(posinf=0.0)


def by_us(
    call: Call, leaves: Tensors, dout: torch.Tensor, mask: torch.Tensor | None, device: str
) -> list[torch.Tensor]:
    place = to_xpu if device == "xpu" else torch.Tensor.detach
    there = {name: place(x).requires_grad_() for name, x in leaves.items()}
    mask = None if mask is None else place(mask)
    out = xeflash.attention(
        *(there[name] for name in "qkv"), mask, enable_gqa=True, scale=call.scale, softcap=call.softcap,
        sinks=there.get("sinks"),
    )  # fmt: skip
    return [x.cpu() for x in torch.autograd.grad(out, list(there.values()), place(dout))]


def sizes(x: torch.Tensor) -> torch.Tensor:
    """The largest element of each row; a sink has a row of its own."""
    return x.abs().amax(-1, keepdim=True) if x.dim() > 1 else x.abs()


def farthest(several: list[list[torch.Tensor]], i: int, want: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([sizes(found[i] - want[i]) for found in several]).amax(0)


@pytest.mark.parametrize(("name", "dtype", "rows"), few_rows(EVERY, *DEFAULT))
def test_gradients_are_right_where_autograd_is(device: str, name: str, dtype: str, rows: int) -> None:
    with torch.device("cpu"):
        checked = 0
        GENERATOR.manual_seed(rows)
        for call in CALLS[name]:
            if dtype == "fp16" and max(call.q, call.v, call.dout, call.scale or 0) > 1e4:
                continue
            leaves, dout, mask = draw(call, dtype, rows)
            found = by_us(call, leaves, dout, mask, device)
            wide, single = ({name: x.to(work) for name, x in leaves.items()} for work in (torch.float64, torch.float32))
            want = by_formula(call, wide, dout, mask)
            by_torch = [by_formula(call, single, dout, mask, moved) for moved in MOVED]
            in_16_bits = [by_formula(call, leaves, dout, mask, moved) for moved in MOVED]
            for i, what in enumerate(leaves):
                finite = want[i].to(found[i].dtype).isfinite()
                assert found[i][finite].isfinite().all(), f"{call}: d{what} is not finite"
                size = sizes(want[i]).clamp(min=1.0)
                right = farthest(by_torch, i, want) <= RIGHT / 2 * size
                off = float((farthest(in_16_bits, i, want) / size * right).max()) if dtype != "fp32" else 0.0
                error = sizes((found[i] - want[i]).masked_fill(~finite, 0.0)) / size * right
                worst = int(error.argmax())
                assert error.max() <= RIGHT + 2 * off, (
                    f"{call}: d{what}: row {worst} of size {float(size.flatten()[worst]):.3g} is off by "
                    f"{float(error.max()):.3g} of that; autograd in its type: {off:.3g}"
                )
                checked += int(right.sum())
        assert checked or dtype == "fp16" or name == "-1e9 rows", "no row is checked"
