"""Descriptions of calls of attention in words: function, sizes of sequences, changes to scores, and cache.

The list of `xeflash selftest` and the sweeps of the tests say in Specs what they call. `drawn.py` makes the arrays of
one, calls the function and judges what comes back.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from xeflash.selftest.prepared import DTYPES

MEMORY = ("gpu", "usm")  # kinds of arrays that compute nothing
_SAY_ALL = ("entry", "window", "variant", "broadcast", "place", "format", "layout", "kind")  # without the field's name


@dataclass(unsafe_hash=True)  # frozen ones take three times as long to make
class Spec:
    """The description of a call; fields that are not given have their defaults."""

    dtype: str = "bf16"
    dim: int = 64
    dim_v: int = 0  # 0: as dim
    heads: tuple[int, int] = (2, 2)
    rows: int | tuple[int, ...] = 127  # queries of all sequences, or of each
    keys: int | tuple[int, ...] = 127  # keys; a cache's include those that the call appends
    batch: int = 2  # the number of sequences, unless rows or keys tell it
    # attention, func, kvpacked, qkvpacked; packed sequences varlen, varlen-used (fewer keys than there are),
    # varlen-kvpacked, varlen-qkvpacked; on a cache kvcache; packed queries on pages varlen, varlen-used (room for more
    # keys), varlen-alone (seqused_k without cu_seqlens_k)
    entry: str = "func"
    # full, causal, LEFT,RIGHT or LEFT,causal, which stay below the number of keys, with = before them they do not; with
    # -tl: the diagonal begins at the top left
    window: str = "full"
    # With + between: softcap, alibi, mask, bias (of the type of q), bias32, dropout, chunk, documents, a score_mod
    # (snippet, curve, slope or gain), mask_mod, blocks, of attention() and flash_attn_func picks of keys, and on a
    # cache a tree. Behind softcap, dropout, chunk and picks may stand = and a number, behind documents = and what is
    # drawn for them, behind tree = shared (by all sequences), any (a mask that is no tree) or words, behind blocks =
    # and the rows and keys of one, as in 64 or 32x64, and words of blocks.py, as in 64.lists.1h
    variant: str = "plain"
    broadcast: str = "bhqk"  # the axes of a mask
    hidden: str = "-inf"  # the value by which a bias hides keys: a number, or the lowest of its type
    hidden_rows: bool = False  # a mask hides all keys of some rows, too
    slopes: str = "h"  # ALiBi's slopes: h for each head, bh also for each sequence
    sinks: bool = False
    ends_of_sinks: bool = False  # some sinks are -inf
    scale: float | None = None
    values: str = "normal"  # the kind of Q, K and V, see normal(); any: each array has its own kind
    queries: float = 1.0  # a factor of Q
    mean: float = 0.0  # the mean of V
    lse: bool = True
    # ---- a cache
    # plain, index (of sequences), pad (on the left), paged16 ..., beams: all sequences share what they hold, beams2
    # ...: so many do; with + behind it pad, or shared: places that several sequences have
    place: str = ""
    # of the cache, if it is not dtype: e4m3, e5m2, int8 with a scale; with .array of scales, .none, or .nibbles: V in 4
    # bits, beside K with scales of rows
    format: str = ""
    new: int = 0
    rotary: str = ""  # pairs, halves
    splits: int = 0
    unified: float | None = None  # the maximum to assume
    length: str = "array"  # or number, where all lengths are equal; all: it is not said, as all of the cache is used
    # ---- gradients
    grad: bool = False
    probs: bool = False  # in their place the probabilities that dropout left
    dlse: bool = False
    fixed: str = ""  # of what could have a gradient: the names, with + between, that nobody asks for
    # ---- arrays
    layout: str = "bshd"
    layout_of_dout: str = "bshd"
    kind: str = "torch"
    checked: int = 0  # only so many rows of the first head of the first sequence, the last ones: for large cases

    @property
    def name(self) -> str:
        """Returns the name of the case: its sizes, and each field that is not the default."""
        kind = "probabilities" if self.probs else "gradient" if self.grad else "cache" if self.place else ""
        kind = kind or ("varlen" if self.is_packed else "decode" if self.rows == 1 else "forward")
        dims = f"d{self.dim}/{self.dim_v}" if self.dim_v not in (0, self.dim) else f"d{self.dim}"
        shape = f"{self.heads[0]}/{self.heads[1]} {_sizes(self.rows)}x{_sizes(self.keys)}"
        found = [kind, self.dtype, dims, shape]
        for field in fields(self)[6:]:
            value = getattr(self, field.name)
            if value in (field.default, kind, "kvcache") or field.name in ("grad", "probs", "checked"):
                continue
            name, word = field.name.replace("_", " "), str(value)
            if isinstance(value, bool):
                word = name if value else f"no {name}"
            elif not (word[0].isalpha() and field.name in _SAY_ALL):
                word = f"{name} {word}"
            found.append(word)
        return " ".join(found)

    @property
    def id(self) -> str:
        """Returns the name of a test."""
        return self.name.replace(" ", "-")

    # ---- sizes ----

    @property
    def dims(self) -> tuple[int, int]:
        """Returns the head dims of Q and K, and of V."""
        return self.dim, self.dim_v or self.dim

    @property
    def returns_lse(self) -> bool:
        """Returns whether the call asks for the LSE; for gradients, whether it has one."""
        return self.dlse if self.grad else self.lse

    @property
    def has_nibbles(self) -> bool:
        """Returns whether V of a cache is in 4 bits."""
        return self.format.endswith(".nibbles")

    @property
    def is_packed(self) -> bool:
        """Returns whether sequences lie behind each other."""
        return self.entry.startswith("varlen")

    @property
    def sequences(self) -> list[tuple[int, int]]:
        """Returns the queries and keys of each sequence; some packed ones have nothing on one side."""
        rows, keys = self.rows, self.keys
        if isinstance(rows, int) and isinstance(keys, int):
            if not self.is_packed:
                return [(rows, keys)] * self.batch
            found = [(rows, keys), (0, keys // 2), (rows // 2 + 1, 0), (max(1, rows // 3), max(1, keys // 3))]
            return [(n, n) for n, _ in found] if "qkvpacked" in self.entry else found
        count = len(keys if isinstance(keys, tuple) else rows)  # type: ignore[arg-type]
        sides = (side if isinstance(side, tuple) else (side,) * count for side in (rows, keys))
        return list(zip(*sides, strict=True))

    @property
    def sizes(self) -> tuple[int, int]:
        """Returns the queries and keys of each sequence, or 0 where they differ."""
        rows, keys = self.rows, self.keys
        return rows if isinstance(rows, int) else 0, keys if isinstance(keys, int) else 0

    @property
    def tokens(self) -> tuple[int, int]:
        """Returns the queries and keys of all sequences together."""
        return sum(n for n, _ in self.sequences), sum(n for _, n in self.sequences)

    @property
    def used(self) -> list[int]:
        """Returns how many keys of each sequence take part; in a cache all do."""
        fewer = self.entry.endswith("used") and not self.place
        return [max(0, n - i - 1) if fewer else n for i, (_, n) in enumerate(self.sequences)]

    @property
    def room(self) -> list[int]:
        """Returns for how many keys of each sequence there is room; in a cache there may be more than keys."""
        more = self.entry.endswith("used") and self.place
        return [n + i + 1 if more else n for i, (_, n) in enumerate(self.sequences)]

    @property
    def function(self) -> str:
        """Returns the name of the public function that it calls."""
        entry = self.entry.removesuffix("-used").removesuffix("-alone").replace("-", "_")
        named = {"attention": entry, "func": "flash_attn_func", "kvcache": "flash_attn_with_kvcache"}
        return named.get(entry, f"flash_attn_{entry}_func")

    # ---- what changes scores ----

    def word(self, name: str) -> str | None:
        """Returns what follows a word of the variant and its =, or None if the variant has no such word."""
        for said in self.variant.split("+"):
            word, _, value = said.partition("=")
            if word == name:
                return value
        return None

    def has(self, *names: str) -> bool:
        """Returns whether the variant has one of these words."""
        return any(self.word(name) is not None for name in names)

    def number(self, name: str, usual: float) -> float:
        """Returns the number of a word, `usual` if it has none, or 0 if the variant does not have the word."""
        value = self.word(name)
        return 0.0 if value is None else float(value or usual)

    @property
    def masks(self) -> str:
        """Returns "bool" or the type of a bias, or "" if there is no mask."""
        if self.has("mask"):
            return "bool"
        return "float32" if self.has("bias32") else DTYPES[self.dtype] if self.has("bias") else ""

    @property
    def top_left(self) -> bool:
        """Returns whether the diagonal begins at the top left."""
        return self.window.endswith("-tl")

    @property
    def is_causal(self) -> bool:
        """Returns whether the keyword causal hides the keys right of the diagonal."""
        return "causal" in self.window

    @property
    def sides(self) -> tuple[int, int]:
        """Returns the two sides of window_size."""
        said = self.window.removesuffix("-tl").replace("causal", "-1").replace("full", "-1").partition(",")
        left, right = (int(side.removeprefix("=") or -1) for side in said[::2])
        if self.place or said[0].startswith("="):
            return left, right
        most = max([1, *(n for _, n in self.sequences)]) - 1  # from there on flash-attn takes a side to be unlimited
        return min(left, most), min(right, most)


def _sizes(n: int | tuple[int, ...]) -> str:
    return str(n) if isinstance(n, int) else ",".join(map(str, n))


def is_possible(spec: Spec) -> bool:
    """Returns whether a public function can take the Spec, and whether all of its words mean something."""
    heads, heads_k = spec.heads
    if (spec.broadcast != "bhqk" and not spec.masks) or (spec.slopes == "bh" and not spec.has("alibi")):
        return False  # says nothing
    if spec.entry != "attention" and (spec.masks or spec.top_left):
        return False
    if spec.has("dropout") and spec.entry != "attention" and not spec.grad:
        return False  # with an LSE they give all probabilities, which are judged by themselves
    if spec.has("dropout") and spec.has("softcap") and spec.entry != "attention":
        return False  # refused, as by flash-attn
    if spec.scale == 0 and spec.has("softcap"):
        return False  # a negligible scale makes every variant but the mask a constant
    if spec.has("documents") and (spec.is_packed or any(n > m or (spec.top_left and n < m) for n, m in spec.sequences)):
        return False  # the rows have the ids of the last keys
    if spec.top_left and spec.window.startswith("full"):
        return False
    if "packed" in spec.entry and (spec.dims[0] != spec.dims[1] or spec.has("snippet", "curve", "slope")):
        return False
    if "qkvpacked" in spec.entry and (spec.rows != spec.keys or heads != heads_k):
        return False
    if spec.has("tree") and not _is_possible_with_a_tree(spec):
        return False
    if spec.has("mask_mod", "blocks"):
        without = spec.has("documents", "chunk", "picks", "tree") or spec.unified is not None
        if without or "packed" in spec.entry:
            return False
    return not spec.place or _is_possible_on_a_cache(spec)


def _is_possible_with_a_tree(spec: Spec) -> bool:
    if not spec.place or spec.window != "full" or spec.has("alibi", "chunk"):
        return False
    return all(n <= m for n, m in spec.sequences) and (not spec.rotary or spec.rows == spec.new)


def _is_possible_on_a_cache(spec: Spec) -> bool:
    rows, keys = (max(side) for side in zip(*spec.sequences, (0, 0), strict=True))
    if (spec.rotary and not spec.new) or spec.new > min((n for _, n in spec.sequences), default=0):
        return False
    if (spec.splits > 1 or spec.unified is not None) and rows > 1:
        return False  # refused
    if spec.length == "number" and len(spec.sequences) > 1:
        return False
    if spec.kind == "numpy" and spec.format.startswith("e"):
        return False  # numpy has them by ml_dtypes
    if spec.has_nibbles and (spec.dtype == "fp32" or spec.dim % 32 or spec.dims[1] % 64 or "beams" in spec.place):
        return False  # refused
    return bool(spec.heads[0] * keys * max(rows, 4) * spec.dim < 1e8)  # the reference takes its time
