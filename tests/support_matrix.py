"""The support matrix in README.md beside this file, from the cases that the tests run: `python tests/support_matrix.py` writes it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "attention")]

import gradients  # noqa: E402
import test_backward  # noqa: E402
import test_gpu  # noqa: E402
import test_pairwise  # noqa: E402
from cases import Case  # noqa: E402

README = HERE / "README.md"
BEGIN, END = "<!-- support matrix: python tests/support_matrix.py -->", "<!-- end -->"
DTYPES = ("fp32", "bf16", "fp16")
Dims: TypeAlias = dict[str, set[tuple[int, int]]]


@dataclass
class Choices:
    """What a case calls, forward or backward, in the words of the features."""

    dtype: str
    dims: tuple[int, int]
    rows: int
    window: str
    top_left: bool
    changes: set[str]  # of scores
    heads: str
    entry: str
    sinks: bool
    lse: bool


def forward(case: Case) -> Choices:
    return Choices(
        case.dtype, (case.dim, case.dim_v), case.rows, case.window, case.window.endswith("-tl"),
        set(case.variant.replace("bias32", "bias").split("-")), case.heads, case.entry, case.sinks, case.lse,
    )  # fmt: skip


def backward(case: gradients.Case) -> Choices:
    dtype, *dims = case.kernel
    return Choices(
        dtype, (dims[0], dims[1]), case.sizes[0], case.window, case.top_left,
        set(case.variant.split("+")), case.heads, case.entry, case.sinks, case.dlse,
    )  # fmt: skip


COLUMNS: dict[str, list[Choices]] = {
    "forward": [forward(c) for c in test_pairwise.PAIRWISE + test_pairwise.LONG],
    "gradients": [backward(c) for c in test_backward.DEFAULT + test_backward.PAIRWISE + test_backward.MIXTURES],
    "forward on GPUs": [forward(c) for c in test_gpu.PAIRWISE + test_gpu.LONG],
    "gradients on GPUs": [
        backward(c) for c in test_backward.DEFAULT_ON_GPU + test_backward.WIDE_ON_GPU + test_backward.PAIRWISE_ON_GPU
    ],
}
FEATURES: dict[str, Callable[[Choices], bool]] = {
    "no mask": lambda c: c.window == "full" and c.changes == {"plain"},
    "causal, bottom-right": lambda c: c.window in ("causal", "causal-window") and not c.top_left,
    "causal, top-left": lambda c: c.window in ("causal", "causal-tl") and c.top_left,
    "sliding window": lambda c: c.window in ("window", "left", "right", "window-tl", "causal-window"),
    "GQA and MQA": lambda c: c.heads not in ("mha", "one"),
    "packed sequences (varlen)": lambda c: c.entry.startswith("varlen"),
    "softcap": lambda c: "softcap" in c.changes,
    "ALiBi; its slopes have gradients": lambda c: "alibi" in c.changes,
    "attention sinks, which have gradients": lambda c: c.sinks,
    "boolean mask": lambda c: "mask" in c.changes,
    "additive bias, which has a gradient": lambda c: "bias" in c.changes,
    "score_mod; what it captures has gradients": lambda c: "snippet" in c.changes,
    "dropout": lambda c: "dropout" in c.changes,
    "one query": lambda c: c.rows == 1 and "dropout" not in c.changes,
    "LSE, which has a gradient": lambda c: c.lse,
}


def head_dims(cases: list[Choices]) -> Dims:
    """Those of Q and K, and of V, of each type."""
    return {dtype: {c.dims for c in cases if c.dtype == dtype} for dtype in DTYPES}


def spelled(dims: Dims) -> str:
    """A list for each type that has any, or one for types that have the same."""
    lists = {t: ", ".join(str(d) if d == dv else f"{d}/{dv}" for d, dv in sorted(found)) for t, found in dims.items()}
    if len(set(lists.values())) == 1:
        return lists[DTYPES[0]]
    return "; ".join(f"{t}: {found}" for t, found in lists.items() if found)


def tested(cases: list[Choices], feature: Callable[[Choices], bool]) -> str:
    """The head dims with which the cases of a column test a feature; "all" are those that the column has."""
    every, found = head_dims(cases), head_dims([c for c in cases if feature(c)])
    missing = {t: every[t] - found[t] for t in DTYPES}
    if not any(missing.values()):
        return "all"
    few = sum(map(len, missing.values())) < sum(map(len, found.values()))
    return f"all but {spelled(missing)}" if few else spelled(found)


def gaps() -> list[tuple[str, str, str]]:
    """Features that no case of a column has with a type."""
    return [
        (column, name, dtype)
        for column, cases in COLUMNS.items()
        for name, feature in FEATURES.items()
        for dtype, dims in head_dims([c for c in cases if feature(c)]).items()
        if not dims
    ]


def matrix() -> str:
    """The head dims of each column, and those that it tests each feature with."""
    lines = ["| | head dims |", "|---|---|"]
    lines += [f"| {name} | {spelled(head_dims(cases))} |" for name, cases in COLUMNS.items()]
    lines += ["", "| feature | " + " | ".join(COLUMNS) + " |", "|---|" + "---|" * len(COLUMNS)]
    for name, feature in FEATURES.items():
        lines.append(f"| {name} | " + " | ".join(tested(cases, feature) for cases in COLUMNS.values()) + " |")
    return "\n".join(lines)


def with_matrix(readme: str) -> str:
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{matrix()}\n{END}{after}"


if __name__ == "__main__":
    README.write_text(with_matrix(README.read_text()))
