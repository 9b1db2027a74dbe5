"""The support matrix in README.md beside this file, from the cases that the tests run: `python tests/support_matrix.py` writes it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "attention")]

from cases import Case  # noqa: E402
from test_pairwise import LONG, PAIRWISE  # noqa: E402

README = HERE / "README.md"
BEGIN, END = "<!-- support matrix: python tests/support_matrix.py -->", "<!-- end -->"

FEATURES: dict[str, Callable[[Case], bool]] = {
    "no mask": lambda c: c.window == "full" and c.variant == "plain",
    "causal, bottom-right": lambda c: c.window in ("causal", "causal-window"),
    "causal, top-left": lambda c: c.window == "causal-tl",
    "sliding window": lambda c: c.window in ("window", "left", "right", "window-tl", "causal-window"),
    "GQA and MQA": lambda c: c.heads != "mha",
    "packed sequences (varlen)": lambda c: c.entry.startswith("varlen"),
    "softcap": lambda c: "softcap" in c.variant,
    "ALiBi": lambda c: "alibi" in c.variant,
    "attention sinks": lambda c: c.sinks,
    "boolean mask": lambda c: c.variant == "mask",
    "additive bias": lambda c: "bias" in c.variant,
    "score_mod": lambda c: "snippet" in c.variant,
    "dropout": lambda c: c.variant == "dropout",
    "one-token decode": lambda c: c.rows == 1 and c.variant != "dropout",
    "LSE": lambda c: c.lse,
}
DTYPES = ("fp32", "bf16", "fp16")


def head_dims(dtype: str, feature: Callable[[Case], bool]) -> str:
    dims = sorted({(c.dim, c.dim_v) for c in PAIRWISE + LONG if c.dtype == dtype and feature(c)})
    return ", ".join(str(d) if d == dv else f"{d}/{dv}" for d, dv in dims)


def matrix() -> str:
    """The head dims (of Q and K / of V) with which a feature is tested on the SYCL CPU device, per type."""
    lines = ["| feature | " + " | ".join(DTYPES) + " |", "|---|" + "---|" * len(DTYPES)]
    lines += [
        f"| {name} | " + " | ".join(head_dims(dtype, feature) for dtype in DTYPES) + " |"
        for name, feature in FEATURES.items()
    ]
    return "\n".join(lines)


def with_matrix(readme: str) -> str:
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{matrix()}\n{END}{after}"


if __name__ == "__main__":
    README.write_text(with_matrix(README.read_text()))
