"""A case of attention on a cache in the words of the tests; `run` calls and checks it as xeflash.selftest.cached does."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from arrays import ArraysOf
from tolerance import by_rule, dtype_name
from xeflash.selftest import cached
from xeflash.selftest.cached import Cached
from xeflash.selftest.reference import to_numpy

HEADS = {"32/32": (32, 32), "2/2": (2, 2), "32/8": (32, 8), "40/10": (40, 10), "8/1": (8, 1), "6/2": (6, 2)}
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "int8": torch.int8}
LENGTHS = {  # keys of each sequence at the end
    "5000": (5000,),
    "1": (1,),
    "0,17": (0, 17),
    "129,0,700": (129, 0, 700),
    "70,9": (70, 9),
    "eight": (31, 64, 65, 1, 300, 255, 256, 3),
}
WINDOWS = {"full": (-1, -1), "causal": (-1, 0), "window": (40, 7), "left": (100, -1)}


@dataclass(unsafe_hash=True)  # frozen ones take three times as long to make
class CacheCase:
    dtype: str = "bf16"
    dim: int = 64
    dim_v: int = 64
    lengths: str = "129,0,700"
    rows: int = 1
    heads: str = "6/2"
    place: str = "plain"  # plain, index, pad, paged16 ..., beams1 ...
    format: str = "same"  # same, or e4m3, e5m2, int8 with a scale, or with .array of scales
    new: int = 0  # keys appended by the call
    rotary: str = "none"  # none, pairs, halves
    window: str = "full"
    variant: str = "plain"  # softcap, alibi, with + between
    sinks: bool = False
    splits: int = 0
    unified: float | None = None  # the maximum to assume
    seqlens: str = "array"  # or int, where all lengths are equal
    kind: str = "torch"
    lse: bool = True

    @property
    def id(self) -> str:
        dim = f"d{self.dim}" if self.dim == self.dim_v else f"d{self.dim}x{self.dim_v}"
        parts = [self.dtype, dim, f"k{self.lengths}", f"q{self.rows}", self.heads, self.place]
        parts += [self.format] if self.format != "same" else []
        parts += [f"new{self.new}"] if self.new else []
        parts += [self.rotary] if self.rotary != "none" else []
        parts += [self.window] if self.window != "full" else []
        parts += [self.variant] if self.variant != "plain" else []
        parts += ["sinks"] if self.sinks else []
        parts += [f"splits{self.splits}"] if self.splits else []
        parts += [f"max{self.unified:g}"] if self.unified is not None else []
        return "-".join([*parts, self.seqlens, self.kind, *([] if self.lse else ["no-lse"])])

    @property
    def cached(self) -> Cached:
        form, _, arrays = self.format.partition(".")
        return Cached(
            self.dtype, self.dim, LENGTHS[self.lengths], self.rows, HEADS[self.heads], self.place,
            "" if form == "same" else form, "" if form == "same" else arrays or "number", self.new,
            "" if self.rotary == "none" else self.rotary, WINDOWS[self.window], self.splits, self.sinks,
            softcap=3.0 if "softcap" in self.variant else 0.0, dim_v=self.dim_v, turned=self.dim // 16 * 16,
            alibi="alibi" in self.variant, scale=-0.2 if self.splits == 3 else None, unified=self.unified,
            same_length=self.seqlens == "int", lse=self.lse,
        )  # fmt: skip


def is_possible(case: CacheCase) -> bool:
    lengths, heads = LENGTHS[case.lengths], HEADS[case.heads][0]
    if (case.rotary != "none" and not case.new) or case.new > min(lengths):
        return False
    if (case.splits > 1 or case.unified is not None) and case.rows > 1:
        return False  # refused
    if case.seqlens == "int" and len(lengths) > 1:
        return False
    if case.kind == "numpy" and case.format.startswith("e"):
        return False  # numpy has them by ml_dtypes: see test_append.py
    return heads * max(lengths) * max(case.rows, 4) * case.dim < 1e8  # the reference takes its time


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, at: torch.Tensor, style: str) -> torch.Tensor:
    """x (tokens, H, D) rotated by the positions `at`, in the dtype of x."""
    numbers = cached.rotated(to_numpy(x)[None], at.numpy()[None], to_numpy(cos), to_numpy(sin), style, dtype_name(x))
    return torch.from_numpy(numbers[0]).to(x.dtype)


def as_indexable(array: torch.Tensor) -> torch.Tensor:
    """The same memory; PyTorch indexes no 8-bit floats."""
    return array.view(torch.int8) if array.dtype in FORMATS.values() else array


def run(case: CacheCase) -> None:
    prepared = case.cached.prepare(ArraysOf(case.kind), by_rule)
    for finding in prepared.judge(prepared.call()):
        assert finding.ok, f"{case.id} {finding}"
