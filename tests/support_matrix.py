"""The support matrix in README.md beside this file, from the cases that the tests run: `python tests/support_matrix.py` writes it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "attention")]

import test_backward  # noqa: E402
import test_gpu  # noqa: E402
import test_pairwise  # noqa: E402
from xeflash.selftest.attention.spec import Spec  # noqa: E402

README = HERE / "README.md"
BEGIN, END = "<!-- support matrix: python tests/support_matrix.py -->", "<!-- end -->"
DTYPES = ("fp32", "bf16", "fp16")
Dims: TypeAlias = dict[str, set[tuple[int, int]]]


COLUMNS: dict[str, list[Spec]] = {
    "forward": test_pairwise.PAIRWISE + test_pairwise.LONG,
    "gradients": test_backward.DEFAULT + test_backward.PAIRWISE + test_backward.MIXTURES,
    "forward on GPUs": test_gpu.PAIRWISE + test_gpu.LONG,
    "gradients on GPUs": test_backward.DEFAULT_ON_GPU + test_backward.WIDE_ON_GPU + test_backward.PAIRWISE_ON_GPU,
}
FEATURES: dict[str, Callable[[Spec], bool]] = {
    "no mask": lambda c: c.window == "full" and c.variant == "plain",
    "causal, bottom-right": lambda c: c.is_causal and not c.top_left,
    "causal, top-left": lambda c: c.is_causal and c.top_left,
    "sliding window": lambda c: "," in c.window,
    "GQA and MQA": lambda c: c.heads not in ((1, 1), (2, 2)),
    "packed sequences (varlen)": lambda c: c.is_packed,
    "softcap": lambda c: c.has("softcap"),
    "ALiBi; its slopes have gradients": lambda c: c.has("alibi"),
    "attention sinks, which have gradients": lambda c: c.sinks,
    "boolean mask": lambda c: c.has("mask"),
    "additive bias, which has a gradient": lambda c: c.has("bias", "bias32"),
    "score_mod; what it captures has gradients": lambda c: c.has("snippet", "curve"),
    "dropout": lambda c: c.has("dropout"),
    "one query": lambda c: c.rows == 1 and not c.has("dropout"),
    "LSE, which has a gradient": lambda c: c.returns_lse,
}


def head_dims(cases: list[Spec]) -> Dims:
    """Those of Q and K, and of V, of each type."""
    return {dtype: {c.dims for c in cases if c.dtype == dtype} for dtype in DTYPES}


def spelled(dims: Dims) -> str:
    """A list for each type that has any, or one for types that have the same."""
    lists = {t: ", ".join(str(d) if d == dv else f"{d}/{dv}" for d, dv in sorted(found)) for t, found in dims.items()}
    if len(set(lists.values())) == 1:
        return lists[DTYPES[0]]
    return "; ".join(f"{t}: {found}" for t, found in lists.items() if found)


def tested(cases: list[Spec], feature: Callable[[Spec], bool]) -> str:
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
