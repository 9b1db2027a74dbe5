"""What is wrong with snippets of C++, their captures, and blocks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from memory import Array

from .case import Case
from .mutation import NAN, Mutation, again


def wrong_snippets(case: Case) -> Iterator[Mutation]:
    texts = [name for name in ("score_mod", "mask_mod") if case.arguments.get(name) is not None]
    for name in {*texts, "score_mod"}:
        for wrong in (5, ["s"], "", "  ", lambda s: s):
            also = (("captures", None),)
            yield Mutation(name, f"is {wrong!r:.20}", lambda x=wrong: x, ("captures", *texts), typed=True, also=also)
    if not texts:
        yield Mutation("captures", "without score_mod", lambda: {"a": 1.0})
        return
    given = case.arguments["captures"]
    for wrong in (5, "text", [1], {**given, "unused": 1}, {**given, "s": 1}, {**given, "a b": 1}, {**given, 5: 1}):
        yield Mutation("captures", f"is {str(wrong)[-40:]}", lambda x=wrong: x, typed=True)
    for value in ("text", None, [1.0], 2**31, 2**63, 1j, object()):
        yield Mutation("captures", f"of period is {value!r:.20}", lambda x=value: {**given, "period": x}, typed=True)
    if "mask_mod" in texts:
        for text in ("s > 0", "q_idx >= (k_idx", "q_idx # k_idx"):
            yield Mutation("mask_mod", f"is {text}", lambda x=text: x, ("captures",))


def wrong_blocks(case: Case) -> Iterator[Mutation]:
    of, mask = ("block_mask", "block_size"), case.arguments["block_mask"]
    for size in (0, -64, 1, 8, 15, 24, 100, 2**31, 2**40, 2.5, NAN, "text", [], (64,), (64, 8), (64, 64, 64), None):
        typed = not isinstance(size, int)
        yield Mutation("block_size", f"is {size!r}", lambda x=size: x, of, typed=typed)
    yield Mutation("block_mask", "is not given", lambda: None, of)
    if not isinstance(mask, tuple):
        for axis in (-2, -1):
            shape = [n + (axis == i - 4) for i, n in enumerate(mask.shape)]
            yield Mutation(
                "block_mask", f"is longer in axis {axis}", lambda s=shape: again(mask, torch.ones(s).bool()), of
            )
        return
    for i, array in enumerate(mask):

        def other(values: torch.Tensor, i: int = i, array: Array = array) -> tuple[Array, ...]:
            return (*mask[:i], again(array, values), *mask[i + 1 :])

        yield Mutation("block_mask", f"has no {i}", lambda i=i: (*mask[:i], *mask[i + 1 :]), of)
        yield Mutation("block_mask", f"has floats in {i}", lambda f=other, a=array: f(torch.zeros(a.shape)), of)
        longer = [*array.shape[:2], array.shape[2] + 1, *array.shape[3:]]
        yield Mutation("block_mask", f"has longer {i}", lambda f=other, n=longer: f(torch.zeros(n).int()), of)
        for value in (-1, -(2**31), 2**31 - 1):  # what may be refused, and otherwise must not be followed
            far = lambda f=other, a=array, x=value: f(torch.full(a.shape, x, dtype=torch.int32))  # noqa: E731
            yield Mutation("block_mask", f"has {value} in {i}", far, of, either=True)
