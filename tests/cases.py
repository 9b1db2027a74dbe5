"""A case: what is attended, in which memory, by which public function. `run` calls it and checks the result."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import xeflash
from arrays import DTYPES, from_array, is_on_gpu, lay_out, to_array
from tolerance import check_attention
from xeflash.selftest.reference import Features

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
# A score_mod that captures arrays and numbers, and the same in numpy.
SNIPPET = "select(kind[(q_idx + k_idx) % period] == 0, -inf, s + tilt * level(h, (k_idx + b) % period))"
PERIOD, TILT = 7, 0.75
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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Snippet:
    """SNIPPET in numpy, and the arrays that it captures."""

    kind: torch.Tensor
    level: torch.Tensor

    @classmethod
    def draw(cls, heads: int, generator: torch.Generator) -> Snippet:
        kind = torch.randint(0, 5, (PERIOD,), generator=generator, dtype=torch.int32)
        return cls(kind, torch.randn(heads, PERIOD, generator=generator).half())

    def __call__(self, s, b, h, i, j):
        level = self.level.float().numpy()[h, (j + b) % PERIOD]
        return np.where(self.kind.numpy()[(i + j) % PERIOD] == 0, -np.inf, s + TILT * level)

    def keywords(self, kind: str) -> dict[str, object]:
        arrays = {"kind": to_array(self.kind, kind), "level": to_array(self.level, kind)}
        return {"score_mod": SNIPPET, "captures": arrays | {"period": PERIOD, "tilt": TILT}}


def is_possible(case: Case) -> bool:
    """Whether the public functions can say it."""
    heads, heads_k = case.head_counts
    if (case.broadcast != "bhqk" and not case.has_mask) or (case.alibi_batch and "alibi" not in case.variant):
        return False  # says nothing
    if case.entry != "attention" and (case.has_mask or case.window.endswith("-tl")):
        return False
    if case.variant == "dropout" and case.entry != "attention":
        return False  # only attention() takes the seed and offset; the others draw theirs
    if "packed" in case.entry and case.dim != case.dim_v:
        return False
    if "packed" in case.entry and "snippet" in case.variant:
        return False
    if "qkvpacked" in case.entry and (case.rows != case.keys or heads != heads_k):
        return False
    # A negligible scale makes every variant but the mask a constant.
    return not (case.scale == "scale0" and "softcap" in case.variant)


def make_features(case: Case, generator: torch.Generator) -> Features:
    heads, dtype = case.head_counts[0], DTYPES[case.dtype]
    left, right = (min(side, case.keys - 1) for side in WINDOWS[case.window])
    f = Features(scale=SCALES[case.scale], window=(left, right), top_left=case.window.endswith("-tl"))
    if "softcap" in case.variant:
        f = f.with_(softcap=3.0)
    if "alibi" in case.variant:
        f = f.with_(alibi=torch.rand((case.batch, heads) if case.alibi_batch else (heads,), generator=generator) / 2)
    if case.sinks:
        f = f.with_(sinks=torch.randn(heads, generator=generator) * 2)
    if case.variant == "dropout":
        f = f.with_(dropout=0.15, rng=(0x1234_5678_9ABC_DEF0, 0x1_0000_0003))
    if "snippet" in case.variant:
        f = f.with_(score_mod=Snippet.draw(heads, generator))
    if case.has_mask:
        sizes = {"b": case.batch, "h": heads, "q": case.rows, "k": case.keys, "1": 1}
        shape = [sizes[letter] for letter in case.broadcast]
        hidden = torch.rand(shape, generator=generator) < 0.2
        if "q" in case.broadcast and case.rows > 2:
            hidden[..., 1, :] = True  # a row that sees nothing
        if case.variant == "mask":
            f = f.with_(mask=~hidden)
        else:
            bias = torch.randn(shape, generator=generator) * 2
            bias = bias.to(torch.float32 if case.variant.endswith("bias32") else dtype)
            f = f.with_(mask=bias.masked_fill(hidden, -torch.inf))
    return f.with_(empty_lse=-torch.inf if case.entry == "attention" else torch.inf)


def run(case: Case) -> None:
    generator = torch.Generator().manual_seed(sum(map(ord, case.id)))
    features = make_features(case, generator)
    if case.entry.startswith("varlen"):
        run_varlen(case, features, generator)
    elif case.entry == "attention":
        run_attention(case, features, generator)
    else:
        run_dense(case, features, generator)


def draw(case: Case, generator: torch.Generator, *shape: int) -> torch.Tensor:
    return lay_out(torch.randn(shape, generator=generator).to(DTYPES[case.dtype]), case.layout)


def common(case: Case, f: Features) -> dict[str, object]:
    """The keywords that all flash_attn functions share."""
    causal = case.window.startswith("causal")
    options = {
        "causal": causal,
        "softmax_scale": f.scale,
        "softcap": f.softcap,
        "return_attn_probs": case.lse,
    }
    # causal itself must hide what is right of the diagonal
    options["window_size"] = (f.window[0], -1) if causal else f.window
    options |= {"alibi_slopes": to_array(f.alibi, case.kind), "s_aux": to_array(f.sinks, case.kind)}
    options |= f.score_mod.keywords(case.kind) if f.score_mod else {}
    return options


def results(case: Case, result: object) -> tuple[torch.Tensor, torch.Tensor | None]:
    if not case.lse:
        return from_array(result, case.kind), None
    out, lse = result[:2]
    return from_array(out, case.kind), from_array(lse, case.kind)


def run_dense(case: Case, f: Features, generator: torch.Generator) -> None:
    heads, heads_k = case.head_counts
    options = common(case, f)
    if case.entry == "qkvpacked":
        qkv = draw(case, generator, case.batch * case.rows, 3 * heads, case.dim)
        qkv = qkv.unflatten(1, (3, heads)).unflatten(0, (case.batch, case.rows))
        q, k, v = qkv.unbind(2)
        result = xeflash.flash_attn_qkvpacked_func(to_array(qkv, case.kind), **options)
    elif case.entry == "kvpacked":
        q = draw(case, generator, case.batch, case.rows, heads, case.dim)
        kv = draw(case, generator, case.batch, case.keys, 2 * heads_k, case.dim).unflatten(2, (2, heads_k))
        k, v = kv.unbind(2)
        result = xeflash.flash_attn_kvpacked_func(*(to_array(x, case.kind) for x in (q, kv)), **options)
    else:
        q, k, v = (
            draw(case, generator, case.batch, length, n, dim)
            for length, n, dim in (
                (case.rows, heads, case.dim),
                (case.keys, heads_k, case.dim),
                (case.keys, heads_k, case.dim_v),
            )
        )
        result = xeflash.flash_attn_func(*(to_array(x, case.kind) for x in (q, k, v)), **options)
    out, lse = results(case, result)
    q, k, v, out = (x.transpose(1, 2) for x in (q, k, v, out))
    check_attention(case.id, q, k, v, f, out, lse, case.is_on_gpu)


def run_attention(case: Case, f: Features, generator: torch.Generator) -> None:
    heads, heads_k = case.head_counts
    shapes = [
        (case.rows, heads, case.dim),
        (case.keys, heads_k, case.dim),
        (case.keys, heads_k, case.dim_v),
    ]
    q, k, v = (draw(case, generator, case.batch, *shape).transpose(1, 2) for shape in shapes)
    causal = case.window.startswith("causal")
    result = xeflash.attention(
        *(to_array(x, case.kind) for x in (q, k, v)),
        attn_mask=to_array(f.mask, case.kind),
        dropout_p=f.dropout,
        is_causal=causal,
        scale=f.scale,
        enable_gqa=True,
        bottom_right=not f.top_left,
        window_size=(f.window[0], -1) if causal else f.window,
        softcap=f.softcap,
        alibi_slopes=to_array(f.alibi, case.kind),
        sinks=to_array(f.sinks, case.kind),
        return_lse=case.lse,
        rng=f.rng if f.dropout else None,
        **(f.score_mod.keywords(case.kind) if f.score_mod else {}),
    )
    out, lse = results(case, result)
    check_attention(case.id, q, k, v, f, out, lse, case.is_on_gpu)


def run_varlen(case: Case, f: Features, generator: torch.Generator) -> None:
    """Sequences of these lengths, two of them empty on one side; -used: fewer keys than there is room for."""
    heads, heads_k = case.head_counts
    lengths_q = [case.rows, 0, case.rows // 2 + 1, max(1, case.rows // 3)]
    lengths_k = [case.keys, case.keys // 2, 0, max(1, case.keys // 3)]
    if "qkvpacked" in case.entry:
        lengths_k = lengths_q
    used = [max(0, n - i - 1) for i, n in enumerate(lengths_k)] if case.entry.endswith("used") else None
    if f.alibi is not None and f.alibi.dim() == 2:
        f = f.with_(alibi=torch.rand((len(lengths_q), heads), generator=generator) / 2)
    cu_q, cu_k = (torch.tensor([0, *lengths]).cumsum(0).int() for lengths in (lengths_q, lengths_k))
    total_q, total_k = sum(lengths_q), sum(lengths_k)
    options = common(case, f)
    if used is not None:
        options["seqused_k"] = to_array(torch.tensor(used, dtype=torch.int32), case.kind)
    cu = [to_array(x, case.kind) for x in (cu_q, cu_k)]

    if case.entry == "varlen-qkvpacked":
        qkv = draw(case, generator, total_q, 3 * heads, case.dim).unflatten(1, (3, heads))
        q, k, v = qkv.unbind(1)
        packed = to_array(qkv, case.kind)
        result = xeflash.flash_attn_varlen_qkvpacked_func(packed, cu[0], case.rows, **options)
    elif case.entry == "varlen-kvpacked":
        q = draw(case, generator, total_q, heads, case.dim)
        kv = draw(case, generator, total_k, 2 * heads_k, case.dim).unflatten(1, (2, heads_k))
        k, v = kv.unbind(1)
        q_kv = [to_array(x, case.kind) for x in (q, kv)]
        result = xeflash.flash_attn_varlen_kvpacked_func(*q_kv, *cu, case.rows, case.keys, **options)
    else:
        q = draw(case, generator, total_q, heads, case.dim)
        k = draw(case, generator, total_k, heads_k, case.dim)
        v = draw(case, generator, total_k, heads_k, case.dim_v)
        q_k_v = [to_array(x, case.kind) for x in (q, k, v)]
        result = xeflash.flash_attn_varlen_func(*q_k_v, *cu, case.rows, case.keys, **options)
    out, lse = results(case, result)
    for i in range(len(lengths_q)):
        keys = slice(cu_k[i], cu_k[i] + (lengths_k if used is None else used)[i])
        rows = slice(cu_q[i], cu_q[i + 1])
        slopes = f.alibi[i : i + 1] if f.alibi is not None and f.alibi.dim() == 2 else f.alibi
        parts = (x[part].transpose(0, 1)[None] for x, part in ((q, rows), (k, keys), (v, keys), (out, rows)))
        q_i, k_i, v_i, out_i = parts
        lse_i = None if lse is None else lse[None, :, rows]
        f_i = f.with_(alibi=slopes, batch0=i)
        check_attention(f"{case.id} sequence {i}", q_i, k_i, v_i, f_i, out_i, lse_i, case.is_on_gpu)
