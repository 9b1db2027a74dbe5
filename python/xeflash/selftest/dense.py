"""Cases of attention on plain arrays: dense, and packed sequences of several lengths."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from xeflash.selftest.arrays import Arrays
from xeflash.selftest.prepared import DTYPES, Prepared, draw, generator_of, work_of
from xeflash.selftest.reference import Features
from xeflash.selftest.tolerance import Finding, judge
from xeflash.selftest.values import Values

SCORE_MOD = "select(document[k_idx] != document[q_idx], -inf, s + near(h, k_idx % 16) * strength)"
_STRENGTH = 0.5


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
    packed: bool = False
    window: tuple[int, int] = (-1, -1)  # (-1, 0) is causal
    top_left: bool = False
    softcap: float = 0.0
    alibi: bool = False
    mask: str = ""  # bool, float (the type of q), float32
    sinks: bool = False
    dropout: float = 0.0
    score_mod: bool = False
    scale: float | None = None
    checked: int = 0  # only so many rows of the first head of the first sequence, the last ones: for large cases

    @property
    def name(self) -> str:
        """What it is."""
        kind = "varlen" if self.packed else "decode" if self.rows == 1 else "forward"
        dims = f"d{self.dim}" + (f"/{self.dim_v}" if self.dim_v else "")
        shape = f"{self.heads[0]}/{self.heads[1]} {self.rows}x{self.keys}"
        words = {
            "causal": self.window == (-1, 0), f"window{self.window}": self.window not in ((-1, -1), (-1, 0)),
            "top-left": self.top_left, "softcap": self.softcap > 0, "alibi": self.alibi,
            f"{self.mask} mask": bool(self.mask), "sinks": self.sinks, "dropout": self.dropout > 0,
            "score_mod": self.score_mod, f"scale {self.scale}": self.scale is not None,
        }  # fmt: skip
        return " ".join([kind, self.dtype, dims, shape, *(word for word, is_so in words.items() if is_so)])

    def prepare(self, arrays: Arrays) -> Prepared:
        """Draw its arrays."""
        xeflash: Any = importlib.import_module("xeflash")
        random, dtype = generator_of(self.name), DTYPES[self.dtype]
        dims, (heads, heads_k) = (self.dim, self.dim_v or self.dim), self.heads
        f, more = self._features(random, arrays)
        lengths = [(self.rows, self.keys)] * self.batch
        if self.packed:  # some empty on one side
            short = (self.rows // 3, self.keys // 3)
            lengths = [(self.rows, self.keys), (0, self.keys // 2), (self.rows // 2 + 1, 0), short]
        starts = [np.cumsum([0, *side]) for side in zip(*lengths, strict=True)]
        q, k, v = (
            draw(random, dtype, int(starts[side][-1]), n, dim)
            for side, n, dim in ((0, heads, dims[0]), (1, heads_k, dims[0]), (1, heads_k, dims[1]))
        )
        call = self._call(xeflash, arrays, (q, k, v), starts, f, more)

        def check(result: Any) -> list[Finding]:
            out, lse = (arrays.get(x).numbers for x in result[:2])
            if not self.packed:  # to (tokens, heads, dim) and (heads, tokens)
                out = out.swapaxes(1, 2) if self._is_bhsd else out
                out, lse = out.reshape(-1, *out.shape[2:]), np.concatenate(list(lse), axis=1)
            found = []
            for b in range(len(lengths)):
                rows, keys = (slice(at[b], at[b + 1]) for at in starts)
                f_b = f.with_(batch0=b, mask=None if f.mask is None else f.mask[b : b + 1])
                of = slice(None)
                if self.checked:
                    rows, of = slice(rows.stop - self.checked, rows.stop), slice(1)
                q_b, k_b, v_b = (Values(x.bits[part, of].swapaxes(0, 1)[None], dtype).numbers
                         for x, part in ((q, rows), (k, keys), (v, keys)))  # fmt: skip
                got, got_lse = out[rows, of].swapaxes(0, 1)[None], lse[None, of, rows]
                found += judge(f"sequence {b} ", dtype, (q_b, k_b, v_b), f_b, got, got_lse, arrays.on_gpu)
                if self.checked:
                    break
            return found

        work = [work_of(*each, heads, heads_k, dims, f) for each in lengths]
        return Prepared(call, check, sum(w[0] for w in work), sum(w[1] for w in work) * q.bits.itemsize)

    @property
    def _is_bhsd(self) -> bool:
        """Whether only `attention` has what it asks for."""
        return bool(self.mask) or self.dropout > 0 or self.top_left

    def _features(self, random: np.random.Generator, arrays: Arrays) -> tuple[Features, dict[str, Any]]:
        """For the reference, and as keywords that all functions have."""
        f = Features(self.scale, self.window, self.top_left, self.softcap, dropout=self.dropout, rng=(7, 1 << 33))
        more: dict[str, Any] = {"softcap": self.softcap}
        heads, shape = self.heads[0], (self.batch, 1, self.rows, self.keys)
        if self.alibi:
            slopes = Values.of(random.random(heads) / 4, "float32")
            f, more["alibi_slopes"] = f.with_(alibi=slopes.numbers), arrays.put(slopes)
        if self.sinks:
            sinks = Values.of(random.standard_normal(heads) * 2, "float32")
            f, more["s_aux"] = f.with_(sinks=sinks.numbers), arrays.put(sinks)
        if self.mask:
            hidden = random.random(shape) < 0.2
            hidden[..., 0, :] = True  # a row that sees nothing
            mask = Values.of(~hidden, "bool")
            if self.mask != "bool":
                numbers = np.where(hidden, -np.inf, random.standard_normal(shape))
                mask = Values.of(numbers, DTYPES[self.dtype] if self.mask == "float" else self.mask)
            f, more["attn_mask"] = f.with_(mask=mask.numbers), arrays.put(mask)
        if self.score_mod:
            document = Values.of(np.arange(max(self.rows, self.keys)) // 50, "int32")
            near = Values.of(random.standard_normal((heads, 16)), "float32")

            def change(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:  # noqa: ARG001
                other = document.numbers[i] != document.numbers[j]
                return np.where(other, -np.inf, s + near.numbers[h, j % 16] * _STRENGTH)

            f = f.with_(score_mod=change)
            captures = {"document": arrays.put(document), "near": arrays.put(near), "strength": _STRENGTH}
            more |= {"score_mod": SCORE_MOD, "captures": captures}
        return f.with_(empty_lse=-np.inf if self._is_bhsd else np.inf), more

    def _call(
        self,
        xeflash: Any,
        arrays: Arrays,
        qkv: tuple[Values, ...],
        starts: list[Any],
        f: Features,
        more: dict[str, Any],
    ) -> Callable[[], Any]:
        """The public function that has what the case asks for, bound to its arrays."""
        if self.packed:
            device = [arrays.put(x) for x in qkv]
            cu = [arrays.put(Values.of(at, "int32")) for at in starts]
            return lambda: xeflash.flash_attn_varlen_func(
                *device, *cu, self.rows, self.keys, softmax_scale=f.scale, window_size=f.window, return_attn_probs=True,
                **more,
            )  # fmt: skip
        batches = [Values(x.bits.reshape(self.batch, -1, *x.bits.shape[1:]), x.dtype) for x in qkv]
        if not self._is_bhsd:
            device = [arrays.put(x) for x in batches]
            return lambda: xeflash.flash_attn_func(
                *device, softmax_scale=f.scale, window_size=f.window, return_attn_probs=True, **more
            )
        device = [arrays.put(Values(np.ascontiguousarray(x.bits.swapaxes(1, 2)), x.dtype)) for x in batches]
        options = {{"s_aux": "sinks"}.get(name, name): value for name, value in more.items()}
        return lambda: xeflash.attention(
            *device, scale=f.scale, window_size=f.window, bottom_right=not f.top_left, enable_gqa=True, return_lse=True,
            dropout_p=f.dropout, rng=f.rng if f.dropout else None, **options,
        )  # fmt: skip
