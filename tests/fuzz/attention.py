"""Cases of attention: a Spec at random, its arrays in memory of any layout, and a call that says it in one of many ways."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
from dataclasses import replace
from typing import Any

import gradients
import numpy as np
import torch
from arrays import DTYPES, from_array
from axes import DOCUMENTS
from memory import Array, place
from tolerance import by_rule
from xeflash.selftest.arrays import TorchArrays
from xeflash.selftest.attention import drawn as specs
from xeflash.selftest.attention.drawn import Drawn
from xeflash.selftest.attention.spec import Spec
from xeflash.selftest.values import Values

from .case import Case, passing_mode, way_of
from .draw import Draw

FAR = (2**31 - 2, 2**31 - 1, 2**31, 2**32, 2**40, 2**62)  # sides of windows that reach over any keys
PACKED = (
    "cu_seqlens",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "seqused_k",
    "cache_seqlens",
    "cache_batch_idx",
    "cache_leftpad",
)
drawn_by_rule = functools.partial(by_rule, drawn=True)


class Placed(TorchArrays):
    """Arrays in memory that notices what is read and written beside them; those of attention() have any leading axes.

    Where a layout makes one element of several, they are other numbers than those that were drawn: `values` has them.
    """

    def __init__(self, draw: Draw, spec: Spec, lead: tuple[int, ...] | None = None, rank: int = 4) -> None:
        super().__init__("cpu")
        self.draw, self.spec, self.lead, self.rank = draw, spec, lead, rank
        self.on_gpu, self.kind = draw.on_gpu, draw.kind  # of results
        self.writable = spec.new > 0  # the cache
        self.values: dict[str, Values] = {}

    def led(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape (B, H, ...) with other axes in the place of the first, and without heads where there are none."""
        if self.lead is not None and len(shape) == 4:
            shape = (*(self.lead if shape[0] == self.spec.batch else (1,) * len(self.lead)), *shape[1:])
        return shape[max(0, len(shape) - self.rank) :] if self.lead is not None else shape

    def put(self, values: Values, name: str = "") -> Any:
        x, how = super().put(values), dict[str, Any]()
        if name == "tree_mask":  # of which bools stay, where the call has words
            return self.draw.array(x, distinct=True)
        if name in PACKED:
            how = {"packed": True}
        elif name in ("block_table", "beam_index"):
            how = {"cached": True, "forward": True, "distinct": True}
        elif name in ("k_cache", "v_cache", "k_scale", "v_scale"):
            of_units = name == "v_scale" and x.dim() == 4  # whose rows are contiguous, as those of V are
            how = {"cached": "cache" in name or of_units, "distinct": True, "written": self.writable}
        elif name in ("kind", "level", "near", "reach", "dlse"):
            how = {"forward": True}
        elif "block" in name:
            how = {"distinct": True}
        elif name == "gather_kv_indices":  # a list names a key once
            how = {"distinct": True, "alike": tuple(axis for axis in range(x.dim() - 1) if self.draw.chance(0.1))}
        elif name == "document_ids" and self.draw.chance(0.2):  # the same for every sequence
            how = {"alike": tuple(range(x.dim() - 1))}
        array = self.draw.array(x.reshape(self.led(tuple(x.shape)) if name == "attn_mask" else x.shape), **how)
        if name == "dlse" and not self.spec.is_packed:  # as it was drawn: (heads, tokens)
            self.values[name] = super().get(array.values().transpose(0, 1).flatten(1))
        else:
            self.values[name] = super().get(array.values().reshape(x.shape))
        return array

    def put_rows(self, values: Values, name: str, heads_first: bool = False, together: int = 1) -> Any:
        x = super().put(values)
        x = x.transpose(-3, -2) if heads_first else x.unflatten(-2, (together, -1)) if together > 1 else x
        how = {"distinct": "used" in self.spec.entry, "forward": name == "dout"}
        array = self.draw.array(x.reshape(self.led(tuple(x.shape))), **how)
        self.kind = array.kind if name[0] == "q" else self.kind
        back = array.values().reshape(x.shape)
        back = back.transpose(-3, -2) if heads_first else back
        parts = back.unbind(-3) if together > 1 else (back,)
        for part, x in zip(name if together > 1 else (name,), parts, strict=True):
            self.values[part] = super().get(x.reshape(math.prod(x.shape[:-2]), *x.shape[-2:]))
        return array

    def get(self, array: Any) -> Values:
        return super().get(array.values() if isinstance(array, Array) else from_array(array, self.kind))


# ---- Specs --------------------------------------------------------------------------------------


def spec_of(draw: Draw, kernel: Spec, entry: str) -> Spec:
    """Any call of a function that a kernel serves: sizes, masks and features that need no other one."""
    words = [
        word for word in kernel.variant.split("+") if entry == "attention" or word not in ("mask", "bias", "bias32")
    ]
    packed = entry.startswith("varlen")
    heads = draw.heads()
    if "qkvpacked" in entry:
        heads = heads[0], heads[0]
    batch = draw.batch()
    if packed:
        count = draw.of(1, 1, 2, 3, 4, 6, 0)
        rows: Any = tuple(0 if draw.chance(0.12) else draw.rows(kernel) for _ in range(count))
        keys: Any = rows if "qkvpacked" in entry else tuple(0 if draw.chance(0.1) else draw.keys() for _ in rows)
    else:
        rows = draw.rows(kernel)
        keys = rows if entry == "qkvpacked" else draw.keys()
    if kernel.has("documents") and not packed:
        rows, keys = min(rows, keys), max(rows, keys)
    most = max(keys, default=0) if isinstance(keys, tuple) else keys
    spec = Spec(
        kernel.dtype, kernel.dim, kernel.dim_v, heads, rows, keys, batch, entry, window=window(draw, most, entry),
        slopes=draw.random.choices(("h", "bh"), (6, 4))[0], sinks=draw.chance(0.25), ends_of_sinks=draw.chance(0.1),
        scale=scale(draw, kernel), values="any", hidden=draw.of("-inf", "-inf", "lowest"), lse=draw.chance(0.5),
        variant="+".join(said(draw, word, most) for word in words) or "plain", broadcast=broadcast(draw),
    )  # fmt: skip
    if spec.has("documents") and rows != keys:
        spec = replace(spec, window=spec.window.removesuffix("-tl"))
    return replace(spec, lse=False) if spec.has("dropout") and entry != "attention" else spec


def scale(draw: Draw, kernel: Spec) -> float | None:
    if not draw.chance(0.3):
        return None
    least = -0.25 if draw.width in ("usual", "wide") else 0.0  # a sign is compiled in
    found = draw.of(0.3, 1.0, 0.01, 0.8 * least, 0.0, 1, draw.random.uniform(least, 0.25))
    return 0.5 if found == 0 and kernel.variant != "plain" else found


def window(draw: Draw, keys: int, entry: str) -> str:
    sides, causal = [-1, -1], draw.chance(0.35)
    if draw.chance(0.3):
        ends = (-1, 0, keys, keys + 1, max(keys - 1, 0), *FAR)
        inside = [draw.random.randint(0, max(keys - 1, 0)) for _ in range(2)]
        sides = [draw.of(1, 5, 16, 40, *inside, *ends) for _ in range(2)]
    top_left = entry == "attention" and draw.chance(0.5)
    return f"={sides[0]},{'causal' if causal else sides[1]}" + "-tl" * top_left


def said(draw: Draw, word: str, keys: int) -> str:
    """A word of a variant with any number that it may have."""
    numbers = {
        "softcap": (3.0, 0.5, 30.0, 5, 50.0), "dropout": (0.15, 0.5, 1.0, 0.001, 1e-4, 0.99),
        "chunk": (1, 3, 16, 40, 64, 100, max(keys, 1), keys + 1, 2**30), "documents": ("", *DOCUMENTS),
        "picks": [min(keys, n) for n in (0, 1, 5, 16, 33, keys)], "blocks": [blocks(draw)],
    }  # fmt: skip
    return f"{word}={draw.of(*numbers[word])}" if word in numbers else word


def blocks(draw: Draw) -> str:
    """A size, or different ones of rows and keys, and what is listed in which form."""
    sizes = [str(draw.of(16, 32, 48, 64, 96, 128, 256, 1024)) for _ in range(draw.of(1, 1, 2))]
    words = [draw.of(*words) for words in (("", "11", "1h", "b1"), ("", "", "", "all", "none"), ("", "lists"))]
    return ".".join(["x".join(sizes), *filter(None, words)])


def broadcast(draw: Draw) -> str:
    letters = "bhqk"[4 - draw.random.randint(1, 4) :] if draw.chance(0.4) else "bhqk"
    return "".join("1" if draw.chance(0.3) else letter for letter in letters)


# ---- calls --------------------------------------------------------------------------------------


def placed(
    draw: Draw, spec: Spec, lead: tuple[int, ...] | None = None, rank: int = 4, writable: bool = False
) -> tuple[Drawn, Placed, Any]:
    """What is drawn for a Spec, as it lies there, and its arrays by their words."""
    drawn = specs.draw(spec, draw.numpy)
    if spec.sinks and not draw.on_gpu and not draw.kind.startswith("usm"):
        sink_dtype = draw.of("float32", "float16", "bfloat16")
        drawn.values["s_aux"] = Values.of(drawn.values["s_aux"].numbers, sink_dtype)
    if spec.is_packed and not spec.has("tree") and draw.chance(0.2):
        more = draw.of(1, 3, 64), draw.of(1, 3, 64)
        drawn = replace(drawn, longest=tuple(n + m for n, m in zip(drawn.longest, more, strict=True)))
        drawn = replace(drawn, longest=(max(drawn.longest),) * 2) if "qkvpacked" in spec.entry else drawn
    arrays = Placed(draw, spec, lead, rank)
    arrays.writable |= writable
    put = drawn.put(arrays)
    return replace(drawn, values=drawn.values | arrays.values), arrays, put


def judged(drawn: Drawn, arrays: Placed, put: Any, result: Any) -> None:
    for finding in drawn.check(arrays, put, result, drawn_by_rule):
        assert finding.ok, str(finding)


def attention(draw: Draw) -> Case:
    kernel = draw.kernel()
    rank = 4 if draw.kind.startswith("usm") else draw.random.choices((4, 3, 2, 5), (76, 9, 6, 9))[0]
    spec = spec_of(draw, kernel, "attention")
    lead = {5: (draw.of(1, 2), draw.of(1, 2, 3)), 4: (spec.batch,)}.get(rank, ())
    spec = replace(spec, batch=math.prod(lead), heads=spec.heads if rank > 2 else (1, 1))
    gone = ["documents"] * (rank != 4) + ["picks"] * (rank != 4 or draw.kind not in ("torch", "xpu") or draw.mixed)
    gone += ["blocks"] * has_no_blocks(draw)
    words = [word for word in spec.variant.split("+") if word.partition("=")[0] not in gone]
    spec = replace(spec, variant="+".join(words) or "plain")
    drawn, arrays, put = placed(draw, spec, lead, rank)
    if spec.has("dropout"):
        drawn = replace(drawn, rng=(draw.random.getrandbits(64), draw.of(0, 1, 2**32 + 3, draw.random.getrandbits(63))))
    arguments, written = drawn.arguments(put), {}
    if spec.heads[0] == spec.heads[1] and draw.chance(0.8):
        del arguments["enable_gqa"]
    if spec.top_left and draw.chance(0.9):
        del arguments["bottom_right"]
    whole = spec.batch, spec.heads[0], spec.sizes[0], spec.dims[1]
    shape = arrays.led(whole)
    if draw.chance(0.3):  # leading axes have to merge into one
        out = torch.zeros(shape, dtype=DTYPES[spec.dtype])
        arguments["out"] = draw.array(out, written=True, packed=rank == 5)
        written["out"] = ...

    def check(result: Any) -> None:
        out, lse = result if spec.lse else (result, None)
        if "out" in arguments:
            assert out is arguments["out"].given, "the result is not out"
            out = arguments["out"]
        assert tuple(out.shape) == shape, f"out has shape {list(out.shape)}"
        assert lse is None or tuple(lse.shape) == shape[:-1], f"the LSE has shape {list(lse.shape)}"
        out = out.values() if isinstance(out, Array) else from_array(out, arrays.kind)
        out = out.reshape(whole)
        arrays.kind, lse = "torch", None if lse is None else from_array(lse, arrays.kind).reshape(out.shape[:-1])
        judged(drawn, arrays, put, out if lse is None else (out, lse))

    way = way_of(draw, arguments, rank == 4 and "out" not in arguments and has_no_bools(spec))
    return Case("attention", said_otherwise(draw, spec, arguments), check, way, written)


def said_otherwise(draw: Draw, spec: Spec, arguments: dict[str, Any]) -> dict[str, Any]:
    """The same call in other words."""
    if "window_size" in arguments:
        left, right = arguments["window_size"]
        right = draw.of(right, 0, 5, 2**40) if spec.is_causal else right
        arguments["window_size"] = draw.of((left, right), [left, right])
    return arguments


def flash_attn(draw: Draw, function: str) -> Case:
    """A call of one of its functions on plain arrays, whose names say what they take."""
    entry = function.removeprefix("flash_attn_").removesuffix("_func").replace("_", "-").replace("func", "") or "func"
    unknown = [*["documents", "picks"] * ("varlen" in entry), *["snippet", "picks"] * ("packed" in entry)]
    unknown += ["picks"] * (draw.kind not in ("torch", "xpu") or draw.mixed) + ["blocks"] * has_no_blocks(draw)
    unknown += ["blocks", "mask_mod"] * (entry != "func")
    kernel = draw.kernel_without(*unknown)
    while "packed" in entry and kernel.dims[0] != kernel.dims[1]:
        kernel = draw.kernel_without(*unknown)
    if entry == "varlen" and draw.chance(0.3):
        entry = "varlen-used"
    spec = spec_of(draw, kernel, entry)
    drawn, arrays, put = placed(draw, spec)
    before = None
    if spec.has("dropout"):
        drawn = replace(drawn, rng=(draw.random.getrandbits(64), 0))
        before = functools.partial(seed, drawn.rng[0])
    arguments = said_otherwise(draw, spec, drawn.arguments(put))
    if not spec.is_packed and draw.chance(0.1):
        arguments["deterministic"] = True
    row_calls = used_queries(draw, spec, drawn, arguments) if entry in ("varlen", "varlen-used") else None

    def check(result: Any) -> None:
        assert not spec.lse or result[2] is None
        if row_calls is None:
            judged(drawn, arrays, put, result)
            return
        rows, fewer = row_calls
        out, lse, _ = (
            from_array(x, arrays.kind) if x is not None else x for x in (result if spec.lse else (result, None, None))
        )
        others = torch.ones(len(out), dtype=torch.bool)
        others[rows] = False
        assert not out[others].any(), "queries that are not used have results"
        arrays.kind = "torch"
        judged(fewer, arrays, put, (out[rows], lse[:, rows]) if spec.lse else out[rows])

    fewest = row_calls[1].spec if row_calls else spec  # the queries that are used
    least = {"max_seqlen_q": max([0, *(n for n, _ in fewest.sequences)]), "max_seqlen_k": max([0, *spec.room])}
    least["max_seqlen"] = least["max_seqlen_q"]
    plain = function in ("flash_attn_func", "flash_attn_varlen_func") and "seqused_q" not in arguments
    plain &= has_no_bools(spec)
    return Case(function, arguments, check, way_of(draw, arguments, plain), before=before, facts={"longest": least})


def seed(number: int) -> None:
    import xeflash

    xeflash.manual_seed(number)


def used_queries(draw: Draw, spec: Spec, drawn: Drawn, arguments: dict[str, Any]) -> tuple[Any, Drawn] | None:
    """With seqused_q: the rows that have results, and the call that has no others."""
    if draw.kind.startswith("usm") or draw.mixed or spec.has("dropout", "snippet") or not draw.chance(0.3):
        return None
    used = tuple(draw.random.randint(0, n) for n, _ in spec.sequences)
    arguments["seqused_q"] = draw.int32(used)
    starts = itertools.accumulate((n for n, _ in spec.sequences), initial=0)
    rows = [start + i for start, n in zip(starts, used, strict=False) for i in range(n)]
    q = drawn.values["q"]
    values = drawn.values | {"q": Values(q.bits[rows], q.dtype)}
    return rows, replace(drawn, spec=replace(spec, rows=used), values=values)


# ---- caches -------------------------------------------------------------------------------------


def flash_attn_with_kvcache(draw: Draw) -> Case:
    kernel, batch, heads = draw.cache_kernel(), draw.batch(), draw.some_heads()
    rows, new = draw.rows(kernel), draw.of(1, 1, 2, 4) if draw.chance(0.45) else 0
    one, base = draw.chance(0.25), kernel.place
    keys = (new + draw.keys(),) * batch if one else tuple(new + draw.keys() for _ in range(batch))
    others = ["index"] * (base == "plain" and draw.chance(0.4)) + ["pad"] * (base != "paged" and draw.chance(0.25))
    page = str(draw.of(16, 64) if draw.on_gpu else draw.of(16, 16, 32, 48, 64)) if base == "paged" else ""
    spec = Spec(
        kernel.dtype, kernel.dim, kernel.dim_v, heads, rows, keys, entry="kvcache",
        window=window(draw, max([64, *keys]), "kvcache"), slopes=draw.of("h", "h", "bh"), sinks=draw.chance(0.25),
        ends_of_sinks=draw.chance(0.1), scale=scale(draw, kernel), values="any", lse=draw.chance(0.5),
        variant="+".join(said(draw, word, 64) for word in kernel.variant.split("+")),
        place="+".join([base + page, *others, *["shared"] * draw.chance(0.2)]), new=new,
        format=kernel.format + ".none" * (kernel.format in ("e4m3", "e5m2") and draw.chance(0.2)),
        rotary=draw.of("pairs", "halves", "", "") if new and kernel.dim >= 16 else "",
        splits=draw.of(1, 2, 3, 17, 128) if draw.chance(0.3) else 0,
        unified=draw.of(0.0, 1, -5.5, 40.0) if rows == 1 and draw.chance(0.2) else None,
        length=draw.of("array", "number", "all") if one and batch and "pad" not in others else "array",
    )  # fmt: skip
    spec = with_a_tree(draw, spec)
    if spec.length == "all" and (new or base == "paged" or not keys[0]):
        spec = replace(spec, length="number")
    nothing = not new and spec.length != "all" and draw.chance(0.05)  # is appended
    drawn, arrays, put = placed(draw, spec, writable=nothing)
    cache = drawn.cache
    assert cache
    arguments = said_otherwise(draw, spec, drawn.arguments(put))
    for side, dim in zip("kv" * nothing, spec.dims, strict=False):
        arguments[side] = draw.array(torch.zeros(batch, 0, heads[1], dim, dtype=DTYPES[spec.dtype]))
    for side in ("k_scale", "v_scale"):
        if isinstance(arguments.get(side), float):
            arguments[side] = one_number(draw, arguments[side])
    appended = [[at[len(at) - new :] for at in place] for place in cache.places]
    index = tuple(np.concatenate([np.zeros(0, int), *side]) for side in zip(*appended, strict=True)) or ([], [])
    names = (name for name in ("k_cache", "v_cache", "k_scale", "v_scale") if isinstance(put.get(name), Array))
    written = {name: index for name in names} if new else {}

    def check(result: Any) -> None:
        out = result[0] if spec.lse else result
        assert tuple(out.shape) == (batch, rows, heads[0], spec.dims[1]), f"out has shape {list(out.shape)}"
        judged(drawn, arrays, put, result)

    facts = {"rows": rows, "batch": batch, "capacity": cache.capacity, "added": new, "appended": index[0]}
    facts |= {"places": cache.arrays[0].bits.shape[0], "used": used_places(drawn)}
    is_plain = has_no_bools(spec) and not any(
        isinstance(arguments.get(f"{x}_scale"), Array) and f"{x}_scale" not in put for x in "kv"
    )
    return Case("flash_attn_with_kvcache", arguments, check, way_of(draw, arguments, is_plain), written, facts=facts)


def with_a_tree(draw: Draw, spec: Spec) -> Spec:
    """The same Spec; if it has a tree, with keys for all nodes, and without what trees do not go with."""
    if not spec.has("tree"):
        return spec
    kinds = ("words",) if draw.kind.startswith("usm") else ("words", "any", "shared")
    rows, keys = zip(*spec.sequences, strict=True) if spec.sequences else ((), ())
    return replace(
        spec, rows=rows if spec.is_packed else spec.rows, keys=tuple(map(max, rows, keys)), window="=-1,-1",
        rotary=spec.rotary if spec.rows == spec.new else "",
        variant=spec.variant.replace("tree", f"tree={draw.of(*kinds)}"),
    )  # fmt: skip


def has_no_bools(spec: Spec) -> bool:
    """Whether an operator takes the call, which has words only."""
    return spec.word("tree") in (None, "words") and not spec.has("blocks", "mask_mod")


def has_no_blocks(draw: Draw) -> bool:
    """Whether arrays are not of a library that makes words of bools, or of several ones."""
    return draw.kind.startswith("usm") or draw.mixed


def one_number(draw: Draw, number: float) -> Any:
    """A number as it is, or in an array; this may be in host memory while all else is on a GPU."""
    if draw.mixed or draw.kind not in ("numpy", "torch", "xpu") or not draw.chance(0.3):
        return number
    kind = draw.of("torch", "xpu") if draw.kind == "xpu" else draw.kind
    return place(torch.full(draw.of((), (1,)), number), kind)


def used_places(drawn: Drawn) -> list[tuple[int, int]]:
    """Places of a table that are read whatever the window is: those of the last keys."""
    cache = drawn.cache
    if not cache or not {"block_table", "beam_index"} & cache.tables.keys():
        return []
    size = cache.arrays[0].bits.shape[1] if "block_table" in cache.tables else 1
    pads = cache.tables.get("cache_leftpad", [0] * len(cache.places))
    ends = [int(pad) + n for pad, (_, n) in zip(pads, drawn.spec.sequences, strict=True)]
    return [(b, (end - 1) // size) for b, end in enumerate(ends) if end > pads[b]]


def flash_attn_varlen_paged(draw: Draw) -> Case:
    while (kernel := draw.cache_kernel()).place != "paged" or kernel.format.partition(".")[0] not in ("", "e4m3"):
        pass
    spec = spec_of(draw, kernel, draw.of("varlen", "varlen-used", "varlen-alone"))
    form = kernel.format.partition(".")[0]
    page = draw.of(16, 64) if draw.on_gpu else draw.of(16, 16, 32, 48, 64)
    spec = replace(spec, heads=draw.some_heads(), place=f"paged{page}", format=form and f"{form}.none")
    spec = with_a_tree(draw, spec)
    drawn, arrays, put = placed(draw, spec)
    arguments = said_otherwise(draw, spec, drawn.arguments(put))
    least = {"max_seqlen_q": max([0, *(n for n, _ in spec.sequences)])}
    least["max_seqlen_k"] = max([0, *spec.used]) if spec.entry == "varlen" else 0
    facts = {"longest": least, "places": drawn.values["k_cache"].bits.shape[0], "used": used_places(drawn)}

    def check(result: Any) -> None:
        judged(drawn, arrays, put, result)

    way = way_of(draw, arguments, has_no_bools(spec))
    return Case("flash_attn_varlen_func", arguments, check, way, facts=facts)


# ---- gradients ----------------------------------------------------------------------------------

# Few, as each takes three kernels or more, and shared with test_backward.py where they can be.
KERNELS = [("bf16", 64, "plain"), ("bf16", 64, "mask"), ("fp32", 64, "bias"), ("fp32", 64, "softcap+alibi+bias+curve")]
KERNELS += [("fp32", 64, "dropout"), ("fp16", 40, "softcap"), ("fp16", 40, "alibi+bias")]
QUERIES = (1.0, 1.0, 1.0, 1.0, 1e2, 1e4, 1e8, 1e12)
DRAWS = 8  # of roundings: nobody has looked at the values, and a sum of few is lucky now and then


def gradients_of(draw: Draw, function: str) -> Case:
    """Any that the function has. Layouts are those of the arrays."""
    draw.kind, draw.mixed = "xpu" if draw.on_gpu else "torch", False
    entry = {"attention": "attention", "flash_attn_func": "func", "flash_attn_varlen_func": "varlen"}[function]

    def compiled() -> dict[str, Any]:
        if draw.width == "wide":
            kernel = gradients.random_kernel(draw.random, draw.kind)
        else:
            dtype, dim, variant = draw.of(*KERNELS[: 1 if draw.width == "narrow" else None])
            kernel = {"dtype": dtype, "dim": dim, "variant": variant}
        masks = f"documents={draw.of(*DOCUMENTS)}", f"chunk={draw.of(1, 7, 40, 64, 100)}"
        masks += f"blocks={blocks(draw)}", f"blocks={blocks(draw)}+mask_mod", "mask_mod"
        masked = kernel["variant"] == "plain" and draw.chance(0.5)
        return kernel | {"variant": draw.of(*masks)} if masked else kernel

    spec, queries = gradients.random_spec(draw.random, compiled, entry, draw.kind), draw.of(*QUERIES)
    spec = replace(
        spec, scale=spec.scale and abs(spec.scale) if draw.width == "narrow" else spec.scale, layout="bshd",
        layout_of_dout=draw.of("bshd", "expanded"), ends_of_sinks=draw.chance(0.2),
        queries=min(queries, 1e2) if spec.dtype == "fp16" else queries, hidden_rows=draw.chance(0.4),
        hidden=draw.of("-inf", "lowest", "lowest", "-1e9", "-1e30"),
    )  # fmt: skip
    drawn, arrays, put = placed(draw, spec)
    mode = passing_mode if draw.chance(0.2) else contextlib.nullcontext

    def call(**given: torch.Tensor) -> Any:
        with torch.enable_grad(), mode():
            return gradients.gradients_twice(drawn, given)

    def check(result: Any) -> None:
        gradients.judge(drawn, *result, draw.generator, DRAWS)

    return Case(f"gradients of {function}", {**put, "case": spec.id}, check, call=lambda case, **given: call(**given))
