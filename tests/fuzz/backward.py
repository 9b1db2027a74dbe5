"""Cases of gradients: a forward pass of a public function, then autograd's, by the rule of tests/gradients.py."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import gradients
import torch
from xeflash.call import random

from .case import Case, passing_mode
from .draw import Draw

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
NARROW = 1
QUERIES = (1.0, 1.0, 1.0, 1.0, 1e2, 1e4, 1e8, 1e12)
DRAWS = 8  # of roundings: nobody has looked at the values, and a sum of few is lucky now and then


def attention(draw: Draw) -> Case:
    return gradients_case(draw, "attention")


def flash_attn_func(draw: Draw) -> Case:
    return gradients_case(draw, "func")


def flash_attn_varlen_func(draw: Draw) -> Case:
    return gradients_case(draw, "varlen")


def draw_case(draw: Draw, entry: str) -> gradients.Case:
    """Any that the function takes. Layouts are those of the arrays."""
    device, few = "xpu" if draw.on_gpu else "cpu", KERNELS[: NARROW if draw.width == "narrow" else None]

    def kernel() -> gradients.Kernel:
        return gradients.random_kernel(draw.random, device) if draw.width == "wide" else draw.random.choice(few)

    case = gradients.random_case(draw.random, kernel, device, (entry,))
    queries = draw.of(*QUERIES)
    documents, chunk = "", 0
    if case.variant == "plain" and draw.chance(0.5):
        documents = draw.of("", *gradients.DOCUMENTS) if entry != "varlen" else ""
        chunk = 0 if documents else draw.of(1, 7, 40, 64, 100)
    if documents:
        case = replace(case, sizes=(min(case.sizes), max(case.sizes)), top_left=False)
    return replace(
        case,
        documents=documents,
        chunk=chunk,
        layout="bshd",
        layout_of_dout="bshd",
        ends_of_sinks=draw.chance(0.2),
        queries=min(queries, 1e2) if case.kernel[0] == "fp16" else queries,
        hidden=draw.of("-inf", "lowest", "lowest", "-1e9", "-1e30"),
        hidden_rows=draw.chance(0.4),
    )


def gradients_case(draw: Draw, entry: str) -> Case:
    draw.kind, draw.mixed = "xpu" if draw.on_gpu else "torch", False
    case = draw_case(draw, entry)
    t, fixed = gradients.draw(case, draw.generator)
    arrays = {name: draw.array(x) for name, x in t.items()}
    others = {name: draw.array(x, forward=True) for name, x in fixed.items()}
    t, fixed = ({name: x.values() for name, x in group.items()} for group in (arrays, others))
    mode = passing_mode if draw.chance(0.2) else contextlib.nullcontext

    def call(**given: torch.Tensor) -> Any:
        leaves = {name: given[name].detach().requires_grad_(name not in case.fixed.split("+")) for name in t}
        more = {name: given[name] for name in others}
        with torch.enable_grad(), mode():
            out, lse = gradients.call(case, leaves, more)
        return gradients.gradients_twice(case, leaves, more, out, lse)

    def check(result: Any) -> None:
        gradients.judge(case, t, fixed, *result, draw.generator, DRAWS)

    function = {"attention": "attention", "func": "flash_attn_func", "varlen": "flash_attn_varlen_func"}[entry]
    return Case(
        f"gradients of {function}", {**arrays, **others, "case": case.id}, check, before=of_torchs_seed,
        call=lambda case, **given: call(**given),
    )  # fmt: skip


def of_torchs_seed() -> None:
    """Dropout has it until manual_seed is called, which other cases do."""
    random._seed = None
