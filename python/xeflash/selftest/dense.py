"""Cases of attention on plain arrays: dense, and packed sequences of several lengths."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from xeflash.selftest.arrays import Arrays
from xeflash.selftest.prepared import DTYPES, Prepared, draw, generator_of, result_of, work_of
from xeflash.selftest.reference import Features, to_numpy
from xeflash.selftest.tolerance import Finding, Judge, judge
from xeflash.selftest.values import Values

Array: TypeAlias = "np.ndarray[Any, Any]"

# A score_mod that captures arrays and numbers.
SNIPPET = "select(kind[(q_idx + k_idx) % period] == 0, -inf, s + tilt * level(h, (k_idx + b) % period))"
PERIOD, TILT = 7, 0.75
RNG = (0x1234_5678_9ABC_DEF0, 0x1_0000_0003)


@dataclass(frozen=True)
class Snippet:
    """SNIPPET in numpy, and the arrays that it captures."""

    kind: Any
    level: Any

    def __call__(self, s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        """Scores of a batch, a head, a query and a key, changed."""
        level = to_numpy(self.level).astype(np.float32)[h, (j + b) % PERIOD]
        return np.where(to_numpy(self.kind)[(i + j) % PERIOD] == 0, -np.inf, s + TILT * level)

    def keywords(self, put: Callable[[Any], Any]) -> dict[str, Any]:
        """Of a call, with arrays that are put somewhere."""
        captures = {"kind": put(self.kind), "level": put(self.level), "period": PERIOD, "tilt": TILT}
        return {"score_mod": SNIPPET, "captures": captures}


@dataclass(frozen=True)
class Dense:
    """Attention of `batch` sequences of `rows` queries on `keys` keys; packed: of lengths between them and 0."""

    dtype: str = "bf16"
    dim: int = 64
    rows: int = 127
    keys: int = 127
    heads: tuple[int, int] = (2, 2)
    batch: int = 2
    dim_v: int = 0  # 0: as dim
    entry: str = "func"  # attention; kvpacked, qkvpacked; of sequences varlen, varlen-used, varlen-kvpacked ...
    window: tuple[int, int] = (-1, -1)  # (-1, 0) is causal
    causal: bool = False  # that keyword has to hide what is right of the diagonal
    top_left: bool = False
    softcap: float = 0.0
    alibi: bool = False
    slopes: str = "h"  # bh: of each sequence
    mask: str = ""  # bool, float (the type of q), float32
    broadcast: str = "b1qk"  # the axes of a mask
    lowest: bool = False  # a mask of fp32 hides by its smallest number, which is finite
    sinks: bool = False
    dropout: float = 0.0
    score_mod: bool = False
    chunk: int = 0
    documents: bool = False  # of some 50 positions, which are other ones in each sequence
    scale: float | None = None
    lse: bool = True
    checked: int = 0  # only so many rows of the first head of the first sequence, the last ones: for large cases

    @property
    def name(self) -> str:
        """What it is."""
        kind = "varlen" if self._is_packed else "decode" if self.rows == 1 else "forward"
        dims = f"d{self.dim}" + (f"/{self.dim_v}" if self.dim_v else "")
        shape = f"{self.heads[0]}/{self.heads[1]} {self.rows}x{self.keys}"
        words = {
            "causal": self.window == (-1, 0), f"window{self.window}": self.window not in ((-1, -1), (-1, 0)),
            "top-left": self.top_left, "softcap": self.softcap > 0, "alibi": self.alibi,
            f"{self.mask} mask": bool(self.mask), "of lowest numbers": self.lowest, "sinks": self.sinks,
            "dropout": self.dropout > 0, "score_mod": self.score_mod, "documents": self.documents,
            "chunks": self.chunk > 0,
            f"scale {self.scale}": self.scale is not None,
        }  # fmt: skip
        return " ".join([kind, self.dtype, dims, shape, *(word for word, is_so in words.items() if is_so)])

    @property
    def _is_packed(self) -> bool:
        return self.entry.startswith("varlen")

    def prepare(self, arrays: Arrays, rule: Judge = judge) -> Prepared:
        """Draw its arrays."""
        random, dtype = generator_of(self.name), DTYPES[self.dtype]
        dims, (heads, heads_k) = (self.dim, self.dim_v or self.dim), self.heads
        lengths = self._lengths()
        used = [max(0, n - i - 1) if self.entry.endswith("used") else n for i, (_, n) in enumerate(lengths)]
        f, more = self._features(random, arrays, len(lengths))
        starts = [np.cumsum([0, *side]) for side in zip(*lengths, strict=True)]
        q, k, v = (
            draw(random, dtype, int(starts[side][-1]), n, dim)
            for side, n, dim in ((0, heads, dims[0]), (1, heads_k, dims[0]), (1, heads_k, dims[1]))
        )
        if self.entry.endswith("used"):
            more["seqused_k"] = arrays.put(Values.of(used, "int32"))
        call = self._call(arrays, (q, k, v), starts, f, more)

        def check(result: Any) -> list[Finding]:
            out, lse = result_of(arrays, result, dtype, self.lse)
            if not self._is_packed:  # to (tokens, heads, dim) and (heads, tokens)
                out = out.swapaxes(1, 2) if self.entry == "attention" else out
                out, lse = out.reshape(-1, *out.shape[2:]), None if lse is None else np.concatenate(list(lse), axis=1)
            found = []
            for b in range(len(lengths)):
                rows, keys = (slice(at[b], at[b] + n) for at, n in zip(starts, (lengths[b][0], used[b]), strict=True))
                f_b = f.with_(batch0=b)
                if f.mask is not None and self.broadcast[0] == "b":
                    f_b = f_b.with_(mask=f.mask[b : b + 1])
                if f.documents is not None:
                    f_b = f_b.with_(documents=f.documents[b])
                if f.alibi is not None and f.alibi.ndim > 1:
                    f_b = f_b.with_(alibi=f.alibi[b : b + 1])
                of = slice(None)
                if self.checked:
                    rows, of = slice(rows.stop - self.checked, rows.stop), slice(1)
                q_b, k_b, v_b = (Values(x.bits[part, of].swapaxes(0, 1)[None], dtype).numbers
                         for x, part in ((q, rows), (k, keys), (v, keys)))  # fmt: skip
                got, got_lse = out[rows, of].swapaxes(0, 1)[None], None if lse is None else lse[None, of, rows]
                found += rule(f"sequence {b} ", dtype, (q_b, k_b, v_b), f_b, got, got_lse, arrays.on_gpu)
                if self.checked:
                    break
            return found

        work = [work_of(*each, heads, heads_k, dims, f) for each in lengths]
        return Prepared(call, check, sum(w[0] for w in work), sum(w[1] for w in work) * q.bits.itemsize)

    def _lengths(self) -> list[tuple[int, int]]:
        """Of the queries and the keys of each sequence; some are empty on one side."""
        if not self._is_packed:
            return [(self.rows, self.keys)] * self.batch
        rows, keys = self.rows, self.keys
        lengths = [(rows, keys), (0, keys // 2), (rows // 2 + 1, 0), (max(1, rows // 3), max(1, keys // 3))]
        return [(n, n) for n, _ in lengths] if "qkvpacked" in self.entry else lengths

    def _features(self, random: np.random.Generator, arrays: Arrays, batch: int) -> tuple[Features, dict[str, Any]]:
        """For the reference, and as keywords that all functions have."""
        f = Features(self.scale, self.window, self.top_left, self.softcap, dropout=self.dropout, rng=RNG)
        more: dict[str, Any] = {"softcap": self.softcap}
        heads = self.heads[0]
        if self.alibi:
            slopes = Values.of(random.random((batch, heads) if self.slopes == "bh" else heads) / 2, "float32")
            f, more["alibi_slopes"] = f.with_(alibi=slopes.numbers), arrays.put(slopes)
        if self.sinks:
            sinks = Values.of(random.standard_normal(heads) * 2, "float32")
            f, more["s_aux"] = f.with_(sinks=sinks.numbers), arrays.put(sinks)
        if self.mask:
            sizes = {"b": self.batch, "h": heads, "q": self.rows, "k": self.keys, "1": 1}
            shape = [sizes[letter] for letter in self.broadcast]
            hidden = random.random(shape) < 0.2
            if "q" in self.broadcast and self.rows > 2:
                hidden[..., 1, :] = True  # a row that sees nothing
            mask = Values.of(~hidden, "bool")
            if self.mask != "bool":
                of = DTYPES[self.dtype] if self.mask == "float" else self.mask
                least = -np.finfo(np.float32).max if self.lowest else -np.inf
                mask = Values.of(np.where(hidden, least, random.standard_normal(shape) * 2), of)
            f, more["attn_mask"] = f.with_(mask=mask.numbers), arrays.put(mask)
        if self.score_mod:
            kind = Values.of(random.integers(0, 5, PERIOD), "int32")
            level = Values.of(random.standard_normal((heads, PERIOD)), "float16")
            f = f.with_(score_mod=Snippet(kind.numbers, level.numbers))
            more |= Snippet(kind, level).keywords(arrays.put)
        if self.chunk:
            f, more["attention_chunk"] = f.with_(chunk=self.chunk), self.chunk
        if self.documents:
            ids = Values.of(np.sort(random.integers(-1, self.keys // 50, (self.batch, self.keys))), "int32")
            f, more["document_ids"] = f.with_(documents=ids.numbers), arrays.put(ids)
        return f.with_(empty_lse=-np.inf if self.entry == "attention" else np.inf), more

    def _call(
        self, arrays: Arrays, qkv: tuple[Values, ...], starts: list[Array], f: Features, more: dict[str, Any]
    ) -> Callable[[], Any]:
        """The public function that has what the case asks for, bound to its arrays."""
        xeflash: Any = importlib.import_module("xeflash")
        window = (f.window[0], -1) if self.causal else f.window
        if not self._is_packed:
            qkv = tuple(Values(x.bits.reshape(self.batch, -1, *x.bits.shape[1:]), x.dtype) for x in qkv)
        if self.entry == "attention":
            device = [arrays.put_rows(x, heads_first=True) for x in qkv]
            options = {{"s_aux": "sinks"}.get(name, name): value for name, value in more.items()}
            return lambda: xeflash.attention(
                *device, scale=f.scale, is_causal=self.causal, window_size=window, bottom_right=not f.top_left,
                enable_gqa=True, return_lse=self.lse, dropout_p=f.dropout, rng=f.rng if f.dropout else None, **options,
            )  # fmt: skip
        more |= {"softmax_scale": f.scale, "causal": self.causal, "window_size": window, "return_attn_probs": self.lse}
        together = {"qkvpacked": 3, "kvpacked": 2}.get(self.entry.removeprefix("varlen-"), 1)
        device = [arrays.put_rows(x) for x in qkv[: 3 - together]]
        last = Values(np.concatenate([x.bits for x in qkv[3 - together :]], axis=-2), qkv[0].dtype)
        device.append(arrays.put_rows(last, together=together))
        sides = 0 if not self._is_packed else 1 if together == 3 else 2
        device += [*(arrays.put(Values.of(at, "int32")) for at in starts[:sides]), *(self.rows, self.keys)[:sides]]
        words = [*("varlen",) * self._is_packed, *(self.entry.removeprefix("varlen-"),) * (together > 1)]
        function = getattr(xeflash, "_".join(["flash_attn", *words, "func"]))
        return lambda: function(*device, **more)
