"""Cases of gradients: a forward pass of a public function, then autograd's, by the rule of tests/gradients.py."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import gradients
import torch
from gradients import HEADS, WINDOWS, gradients_of, is_possible, kept_by
from xeflash.call import random

from .case import Case, passing_mode
from .draw import DIMS, ODD_DIMS, Draw

# Few, as each takes three kernels or more, and shared with test_backward.py where they can be.
KERNELS = [
    (("bf16", 64, 64), "plain"),
    (("bf16", 64, 64), "mask"),
    (("fp32", 64, 64), "bias"),
    (("fp32", 64, 64), "softcap+alibi+bias+snippet"),
    (("fp32", 64, 64), "dropout"),
    (("fp16", 40, 40), "softcap"),
    (("fp16", 40, 40), "alibi+bias"),
]
NARROW = 2
QUERIES = (1.0, 1.0, 1.0, 1.0, 1e2, 1e4, 1e8, 1e12)
DRAWS = 8  # of roundings: nobody has looked at the values, and a sum of few is lucky now and then
SEED = 0x1234_5678_9ABC


def attention(draw: Draw) -> Case:
    return gradients_case(draw, "attention")


def flash_attn_func(draw: Draw) -> Case:
    return gradients_case(draw, "func")


def flash_attn_varlen_func(draw: Draw) -> Case:
    return gradients_case(draw, "varlen")


def draw_kernel(draw: Draw) -> tuple[tuple[str, int, int], str]:
    if draw.width != "wide":
        return draw.random.choice(KERNELS[: NARROW if draw.width == "narrow" else None])
    dims = DIMS if draw.on_gpu else DIMS + ODD_DIMS
    dim = draw.random.choice(dims)
    names = [name for name in ("softcap", "alibi", "snippet") if draw.chance(0.2)]
    names += draw.random.choices((["bias"], ["mask"], ["dropout"], []), (2, 1, 1, 4))[0]
    kernel = draw.of("fp32", "bf16", "fp16"), dim, draw.random.choice(dims) if draw.chance(0.3) else dim
    return kernel, "+".join(names) or "plain"


def draw_case(draw: Draw, entry: str) -> gradients.Case:
    """Any that the function takes. Layouts are those of the arrays."""

    def drawn() -> gradients.Case:
        kernel, variant = draw_kernel(draw)
        sides = f"{draw.of(-1, 0, 1, 5, 40)},{draw.of(-1, 0, 1, 5, 40)}"
        queries = draw.of(*QUERIES)
        return gradients.Case(
            kernel,
            (draw.random.choice(gradients.ROWS), draw.random.choice(gradients.ROWS)),
            draw.of(*HEADS),
            draw.of(*WINDOWS, sides),
            top_left=draw.chance(0.2),
            variant=variant,
            broadcast=draw.of("bhqk", "1hqk", "b11k", "1hq1", "k", "b1qk", "bh1k", "qk", "1111"),
            bh_slopes=draw.chance(0.3),
            sinks=draw.chance(0.3),
            ends_of_sinks=draw.chance(0.2),
            scale=draw.of(None, None, 0.3, -0.2, 1.0),
            entry=entry,
            dlse=draw.chance(0.4),
            values=draw.random.choices(("normal", "large", "small", "zero", "sparse"), (10, 1, 1, 1, 1))[0],
            queries=min(queries, 1e2) if kernel[0] == "fp16" else queries,
            hidden=draw.of("-inf", "lowest", "lowest", "-1e9", "-1e30"),
            hidden_rows=draw.chance(0.4),
            device="xpu" if draw.on_gpu else "cpu",
        )

    while not is_possible(case := drawn()):
        pass
    return case


def gradients_case(draw: Draw, entry: str) -> Case:
    draw.kind, draw.mixed = "xpu" if draw.on_gpu else "torch", False
    case = draw_case(draw, entry)
    t, fixed, of_q, of_k = gradients.draw(case, draw.generator)
    arrays = {name: draw.array(x) for name, x in t.items()}
    others = {name: draw.array(x, forward=True) for name, x in fixed.items()}
    t, fixed = ({name: x.values() for name, x in group.items()} for group in (arrays, others))
    learned = list(t)
    some = [name for name in learned if draw.chance(0.5)] if draw.chance(0.3) else []
    asked = some or learned
    case = replace(case, fixed="+".join(name for name in learned if name not in asked))
    mode = passing_mode if draw.chance(0.2) else contextlib.nullcontext
    rng = (SEED, 0)

    def call(**given: torch.Tensor) -> Any:
        leaves = {name: given[name].detach().requires_grad_(name in asked) for name in learned}
        with torch.enable_grad(), mode():
            out, lse = gradients.call(case, leaves, {name: given[name] for name in others}, of_q, of_k, rng)
        results, into = ([out, lse], [given["dout"], given["dlse"]]) if case.dlse else ([out], [given["dout"]])
        wanted = [leaves[name] for name in asked]
        return torch.autograd.grad(results, wanted, into, retain_graph=True), torch.autograd.grad(results, wanted, into)

    def check(result: Any) -> None:
        found, again = result
        kept = None
        if case.has("dropout"):
            kept = kept_by(case, {name: x.given.detach() for name, x in arrays.items()}, of_q, of_k, rng)
        wide = {name: x.double() for name, x in t.items()}
        want = gradients_of(case, wide, fixed, of_q, of_k, kept)
        moved = [gradients_of(case, wide, fixed, of_q, of_k, kept, draw.generator) for _ in range(DRAWS)]
        by_torch = gradients_of(case, t, fixed, of_q, of_k, kept)
        for name, dx, same in zip(asked, found, again, strict=True):
            gradients.check(
                f"{case.kernel[0]} d{name}", dx.cpu(), want[name], by_torch[name], [x[name] for x in moved], draw.on_gpu
            )
            assert torch.equal(dx, same), f"d{name}: bits change"

    function = {"attention": "attention", "func": "flash_attn_func", "varlen": "flash_attn_varlen_func"}[entry]
    return Case(
        f"gradients of {function}", {**arrays, **others, "case": case.id}, check, before=of_torchs_seed,
        call=lambda case, **given: call(**given),
    )  # fmt: skip


def of_torchs_seed() -> None:
    """Dropout has it until manual_seed is called, which other cases do."""
    random._seed = None
