"""A case in the words of the tests: what is attended, in which memory, by which public function.

`run` calls and checks it as xeflash.selftest.dense does.
"""

from __future__ import annotations

from dataclasses import dataclass

from arrays import ArraysOf, is_on_gpu
from tolerance import by_rule
from xeflash.selftest.dense import Dense

DIMS = ((16, 16), (40, 40), (59, 59), (64, 64), (80, 80), (96, 96), (111, 111), (128, 128))
DIMS += ((192, 128), (256, 256), (576, 512))
HEADS = {"mha": (2, 2), "gqa4": (8, 2), "mqa": (3, 1), "gqa5": (10, 2)}
FEW_HEADS = {"one": (1, 1), "mha": (2, 2), "mqa": (3, 1), "gqa2": (4, 2)}  # where arithmetic is dear
# Windows stay below the fewest keys; "tl": the diagonal from the top left, which only attention() has.
DECODE_HEADS = {"mha": (2, 2), "gqa4": (8, 2), "gqa5": (10, 2), "mqa8": (8, 1), "mqa12": (12, 1)}
DECODE_HEADS |= {"mqa20": (20, 1)}
WINDOWS = {
    "full": (-1, -1),
    "causal": (-1, 0),
    "window": (31, 5),
    "left": (50, -1),
    "right": (-1, 10),
}
WINDOWS |= {"causal-window": (20, 0), "causal-tl": (-1, 0), "window-tl": (31, 5)}
VARIANTS = (
    "plain",
    "softcap",
    "alibi",
    "mask",
    "bias",
    "dropout",
    "softcap-alibi-bias32",
    "snippet",
    "softcap-snippet",
)
BROADCASTS = {
    "bhqk": "bhqk",
    "b1qk": "b1qk",
    "1hqk": "1hqk",
    "qk": "qk",
    "b11k": "b11k",
    "1hq1": "1hq1",
}
SCALES = {"default": None, "scale0.3": 0.3, "scale-0.2": -0.2, "scale0": 0.0}
ENTRIES = (
    "func",
    "attention",
    "varlen",
    "varlen-used",
    "kvpacked",
    "qkvpacked",
    "varlen-kvpacked",
    "varlen-qkvpacked",
)


@dataclass(unsafe_hash=True)  # frozen ones take three times as long to make
class Case:
    dtype: str = "bf16"
    dim: int = 64
    dim_v: int = 64
    rows: int = 127
    keys: int = 127
    batch: int = 2
    heads: str = "mha"
    window: str = "full"
    variant: str = "plain"
    broadcast: str = "bhqk"
    alibi_batch: bool = False
    sinks: bool = False
    scale: str = "default"
    layout: str = "bshd"
    entry: str = "func"
    kind: str = "torch"
    lse: bool = True

    @property
    def id(self) -> str:
        dim = f"d{self.dim}" if self.dim == self.dim_v else f"d{self.dim}x{self.dim_v}"
        parts = [self.dtype, dim, f"q{self.rows}", f"k{self.keys}", f"b{self.batch}", self.heads]
        parts += [self.window] if self.window != "full" else []
        parts += [self.variant] if self.variant != "plain" else []
        parts += [self.broadcast] if self.has_mask else []
        parts += ["bh-slopes"] if self.alibi_batch and "alibi" in self.variant else []
        parts += ["sinks"] if self.sinks else []
        parts += [self.scale] if self.scale != "default" else []
        parts += [] if self.lse else ["no-lse"]
        return "-".join([*parts, self.layout, self.entry, self.kind])

    @property
    def head_counts(self) -> tuple[int, int]:
        """Of Q, and of K and V."""
        return (HEADS | FEW_HEADS | DECODE_HEADS)[self.heads]

    @property
    def is_on_gpu(self) -> bool:
        return is_on_gpu(self.kind)

    @property
    def has_mask(self) -> bool:
        return "mask" in self.variant or "bias" in self.variant

    @property
    def dense(self) -> Dense:
        left, right = (min(side, self.keys - 1) for side in WINDOWS[self.window])
        mask = "bool" if "mask" in self.variant else "float32" if "bias32" in self.variant else "float"
        return Dense(
            self.dtype, self.dim, self.rows, self.keys, self.head_counts, self.batch, self.dim_v, self.entry,
            (left, right), self.window.startswith("causal"), self.window.endswith("-tl"),
            softcap=3.0 if "softcap" in self.variant else 0.0, alibi="alibi" in self.variant,
            slopes="bh" if self.alibi_batch else "h", mask=mask if self.has_mask else "", broadcast=self.broadcast,
            sinks=self.sinks, dropout=0.15 if "dropout" in self.variant else 0.0, score_mod="snippet" in self.variant,
            scale=SCALES[self.scale], lse=self.lse,
        )  # fmt: skip


def is_possible(case: Case) -> bool:
    """Whether the public functions can say it."""
    heads, heads_k = case.head_counts
    if (case.broadcast != "bhqk" and not case.has_mask) or (case.alibi_batch and "alibi" not in case.variant):
        return False  # says nothing
    if case.entry != "attention" and (case.has_mask or case.window.endswith("-tl")):
        return False
    if "dropout" in case.variant and case.entry != "attention":
        return False  # only attention() takes the seed and offset; the others draw theirs
    if "packed" in case.entry and case.dim != case.dim_v:
        return False
    if "packed" in case.entry and "snippet" in case.variant:
        return False
    if "qkvpacked" in case.entry and (case.rows != case.keys or heads != heads_k):
        return False
    # A negligible scale makes every variant but the mask a constant.
    return not (case.scale == "scale0" and "softcap" in case.variant)


def run(case: Case) -> None:
    prepared = case.dense.prepare(ArraysOf(case.kind, case.layout), by_rule)
    for finding in prepared.judge(prepared.call()):
        assert finding.ok, f"{case.id} {finding}"
