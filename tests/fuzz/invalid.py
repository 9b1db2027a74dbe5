"""One thing wrong with a case that was valid: what the documented rules do not allow, by kind of argument."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from arrays import DTYPES
from memory import Array, Layout, place

from .case import Case
from .draw import Draw
from .mutation import INF, NAN, Mutation, again
from .wrong_masks import wrong_blocks, wrong_snippets


def spoil(draw: Draw, case: Case, possible: Iterable[Mutation] | None = None) -> Case:
    """The case with one thing wrong, of what is `possible`; each argument is as likely."""
    found: dict[str, list[Mutation]] = {}
    for mutation in mutations(draw, case) if possible is None else possible:
        if not (mutation.typed and case.way == "operator"):
            found.setdefault(mutation.argument, []).append(mutation)
    chosen = draw.random.choice(found[draw.random.choice(sorted(found))])
    value = chosen.make()
    arguments = case.arguments | {chosen.argument: value} | dict(chosen.also)
    names = frozenset((chosen.argument, *chosen.names, *ALIASES.get(chosen.argument, ())))
    check = (lambda result: None) if chosen.either else case.check
    return replace(
        case,
        arguments=arguments,
        wrong=f"{chosen.argument}: {chosen.wrong}",
        names=names,
        either=chosen.either,
        check=check,
    )


ALIASES = {
    "window_size": ("window_left", "window_right"),
    "states": ("out", "lse", "state"),
    "cache_seqlens": ("cache_length",),
    "k_scale": ("k_factor",),
    "v_scale": ("v_factor",),
}


def mutations(draw: Draw, case: Case) -> Iterator[Mutation]:
    for name, value in case.arguments.items():
        if is_number(name, value):
            continue
        if isinstance(value, Array):
            yield from wrong_array(draw, case, name, value)
            if not value.kind.startswith(("usm", "xpu")):
                yield from wrong_values(draw, case, name, value)
        elif name == "states":
            yield from wrong_states(draw, value)
    yield from wrong_sizes(draw, case)
    yield from wrong_features(case)
    yield from wrong_results(draw, case)


def is_number(name: str, value: Any) -> bool:
    """Whether this is an array of one, in the place of a number."""
    return name in ("k_scale", "v_scale") and isinstance(value, Array) and len(value.shape) < 2


def on_host(case: Case) -> bool:
    """Whether what is in arrays of integers is looked at; on a device it is trusted."""
    return not any(x.kind.startswith(("usm", "xpu")) for _, x in case.arrays())


# ---- arrays -------------------------------------------------------------------------------------

REQUIRED = ("query", "key", "value", "q", "k", "v", "qkv", "kv", "k_cache", "v_cache")
MIXED = ("query", "key", "value", "q", "k", "v", "kv", "k_cache", "v_cache", "rotary_cos", "rotary_sin", "out")
REQUIRED += ("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k")
INTS = ("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")
INTS += ("cache_seqlens", "cache_batch_idx", "cache_leftpad")
TABLES = ("block_table", "beam_index")
LEARNED = ("query", "key", "value", "q", "k", "v", "qkv", "kv", "attn_mask", "alibi_slopes", "sinks", "s_aux")


def may_be_none(case: Case) -> tuple[str, ...]:
    if case.function == "flash_attn_with_kvcache":
        return "k", "v"
    return ("cu_seqlens_k",) if "seqused_k" in case.arguments else ()


def wrong_array(draw: Draw, case: Case, name: str, array: Array) -> Iterator[Mutation]:
    zeros = torch.zeros(array.shape)
    for dtype in (torch.float64, torch.int64, torch.uint8, torch.int16, torch.complex64):
        if array.kind.startswith("usm"):
            break  # its typestrings are ours
        if dtype is torch.uint8 and name == "attn_mask":
            continue
        yield Mutation(name, f"is {dtype}", lambda d=dtype: again(array, zeros.to(d)))
    cached = "k_cache" in case.arguments or "block_table" in case.arguments
    may_be_quantised = name == "q" and cached  # may be quantised
    if name in MIXED and array.dtype.itemsize > 1 and not may_be_quantised:
        for dtype in (x for x in DTYPES.values() if x is not array.dtype):
            yield Mutation(name, f"is {dtype}, unlike others", lambda d=dtype: again(array, zeros.to(d)), MIXED)
    if name not in ("attn_mask", "document_ids", "tree_mask"):
        more = zeros.to(array.dtype)[None, None] if name == "alibi_slopes" else zeros.to(array.dtype)[None]
        yield Mutation(name, f"has {more.dim()} axes", lambda: again(array, more))
    v_cache = case.arguments.get("v_cache")
    of_k_alone = name == "k_scale" and isinstance(v_cache, Array) and v_cache.dtype is torch.uint8  # V has its own
    if name not in ("attn_mask", "out") and not of_k_alone:
        yield Mutation(name, "has no axis", lambda: again(array, torch.zeros((), dtype=array.dtype)))
    for wrong in ([1.0, 2.0], "text", object(), {"a": 1}, True):
        if name in ("k_scale", "v_scale", "cache_seqlens") and wrong is True:
            continue
        yield Mutation(name, f"is a {type(wrong).__name__}", lambda x=wrong: x, typed=True)
    if name in REQUIRED and name not in may_be_none(case):
        yield Mutation(name, "is None", lambda: None, typed=True)
    if array.kind in ("torch", "xpu"):
        yield Mutation(name, "is on meta", lambda: zeros.to(array.dtype).to("meta"))
        # On pages, q, k and v may: a backward pass is refused then.
        may_need_none = case.function == "flash_attn_varlen_func" and name in ("q", "k", "v")
        learned = name in LEARNED and (not cached or may_need_none)
        if array.dtype.is_floating_point and array.dtype.itemsize > 1 and case.way != "operator" and not learned:
            yield Mutation(name, "requires grad", lambda: zeros.to(array.dtype).requires_grad_(), ("grad",))
        if len(array.shape) == 4 and array.dtype is torch.float32:
            yield Mutation(name, "is sparse", lambda: zeros.to_sparse(), typed=True)
    if array.kind == "numpy" and array.dtype is torch.float32:
        yield Mutation(name, "is of the other byte order", lambda: zeros.numpy().astype(">f4"))
    if array.kind in ("usm", "xpu"):
        host = zeros.to(array.dtype)
        yield Mutation(name, "is on the host", lambda: host, ("host", "query", "q", "device"))
    if name in (*INTS, *TABLES) and array.dtype is torch.int32:
        yield Mutation(name, "is uint32", lambda: np.zeros(array.shape, np.uint32), typed=True)


def wrong_sizes(draw: Draw, case: Case) -> Iterator[Mutation]:
    """One axis longer, where nothing can be as long."""
    arguments = case.arguments

    def longer(name: str, axis: int, *names: str, by: int = 1) -> Iterator[Mutation]:
        array = arguments.get(name)
        if isinstance(array, Array) and not is_number(name, array):
            shape = list(array.shape)
            shape[axis] += by
            wrong = f"has {shape[axis]} in the place of {array.shape[axis]} in axis {axis}"
            yield Mutation(name, wrong, lambda: again(array, torch.zeros(shape, dtype=array.dtype)), names)

    qkv = [name for name in ("query", "key", "value", "q", "k", "v", "k_cache", "v_cache") if name in arguments]
    for name in ("query", "q", "key", "k_cache"):
        yield from longer(name, -1, *qkv)
    for name, axis in (("value", -2), ("value", -3), ("v_cache", -3), ("v_cache", -2)):
        array = arguments.get(name)
        if isinstance(array, Array) and -axis <= len(array.shape) and array.shape[axis] > 0:
            yield from longer(name, axis, *qkv)
    if case.function in ("flash_attn_func", "flash_attn_varlen_func") and isinstance(arguments.get("v"), Array):
        yield from longer("v", -3, *qkv, "cu_seqlens_k")
        yield from longer("v", -2, *qkv)
        yield from longer("k", -1, *qkv)
    if case.function == "flash_attn_with_kvcache":
        for side in "kv":
            for axis in (0, -2, -1):
                yield from longer(side, axis, *qkv)
        yield from longer("v", 1, *qkv)
    for name in ("alibi_slopes", "sinks", "s_aux", "block_table", "beam_index", *INTS):
        axis = 0 if name in TABLES else -1
        if name == "cu_seqlens" and name in arguments and not (on_host(case) and arguments["qkv"].shape[0]):
            continue  # nothing else says how many sequences there are
        yield from longer(
            name, axis, "cu_seqlens_k", "cu_seqlens_q", "max_seqlen_q", "max_seqlen_k", "seqused_q", "seqused_k"
        )
    for name in ("qkv", "kv"):
        yield from longer(name, -3)
    yield from longer("document_ids", -1)
    yield from longer("tree_mask", -2)
    yield from longer("gather_kv_indices", -2)
    for name in ("rotary_cos", "rotary_sin", "k_scale", "v_scale"):
        yield from longer(name, -1, "rotary_cos", "rotary_sin")
        yield from longer(name, 0, "rotary_cos", "rotary_sin")
    if isinstance(arguments.get("attn_mask"), Array) and arguments["attn_mask"].shape:
        scores = (*arguments["query"].shape[:-1], arguments["key"].shape[-2])
        rank = len(arguments["attn_mask"].shape)
        for axis in range(-min(rank, len(scores)), 0):
            yield from longer("attn_mask", axis, by=scores[axis] + 2 - arguments["attn_mask"].shape[axis])


def wrong_values(draw: Draw, case: Case, name: str, array: Array) -> Iterator[Mutation]:
    """Numbers in arrays that say where something is; in host memory they are looked at."""
    if array.dtype is not torch.int32 or name == "attn_mask":
        return
    values = array.values()

    def with_(wrong: str, index: Any, value: int, *names: str) -> Mutation:
        def make() -> Array:
            changed = values.clone()
            changed[index] = value
            return again(array, changed)

        return Mutation(name, f"has {value} at {index}: {wrong}", make, names)

    packing = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k", "cu_seqlens", "max_seqlen")
    packing += ("seqused_q", "seqused_k")
    if name.startswith("cu_seqlens"):
        paged = "block_table" in case.arguments and name == "cu_seqlens_k"
        yield with_("the first has to be 0", 0, draw.of(1, -1, 2**31 - 1), *packing)
        if len(values) > 1 and not paged:
            yield with_("not the end", -1, int(values[-1]) + draw.of(1, -1, 1000), *packing)
        if len(values) > 2:
            yield with_("they decrease", 1, draw.of(-1, -(2**31), 2**31 - 1), *packing)
    elif len(values) == 0:
        return
    elif name in ("seqused_q", "seqused_k"):
        yield with_("more than there are", draw.of(0, -1), draw.of(-1, 2**31 - 1, -(2**31)), *packing)
    elif name == "cache_seqlens":
        room = case.facts["capacity"] - case.facts["added"]
        yield with_("no such length", draw.of(0, -1), draw.of(-1, room + 1, 2**31 - 1, -(2**31)))
    elif name == "cache_batch_idx":
        yield with_("no such sequence", draw.of(0, -1), draw.of(-1, case.facts["places"], 2**31 - 1))
        if case.facts["added"] and len(values) > 1:
            yield with_("the same as another", 0, int(values[-1]))
    elif name == "cache_leftpad":
        yield with_("no such place", draw.of(0, -1), draw.of(-1, 1000, 2**31 - 1, -(2**31)))
    elif name == "gather_kv_indices" and values.numel():
        key_name = "key" if "key" in case.arguments else "k"
        keys = case.arguments[key_name].shape[-2 if key_name == "key" else -3]
        yield with_("no such key", (0,) * values.dim(), draw.of(keys, 2**31 - 1))
    elif name == "tree_mask" and case.facts.get("rows", 1):
        yield with_("no node of its own", ..., 0)
    elif name in TABLES and case.facts["used"]:
        b, column = draw.random.choice(case.facts["used"])
        yield with_("no such page or sequence", (b, column), draw.of(-1, case.facts["places"], 2**31 - 1, -(2**31)))


def wrong_states(draw: Draw, states: Any) -> Iterator[Mutation]:
    """Of merge_states: out and lse in turn, or pairs."""
    flat = [x for state in states for x in state] if isinstance(states[0], tuple) else list(states)
    out, lse = flat[:2]
    last = len(flat) - 2

    def replaced(i: int, value: Any) -> list[Any]:
        return [*flat[:i], value, *flat[i + 1 :]]

    def longer(array: Array, axis: int) -> Array:
        shape = list(array.shape)
        shape[axis] += 1
        return again(array, torch.zeros(shape, dtype=array.dtype))

    wider = [(i, axis) for i, axis in ((last, -2), (last, -1), (last + 1, -1), (last + 1, 0))]
    for i, axis in wider:
        if not (last == 0 and (i, axis) == (0, -1)):
            yield Mutation(
                "states", f"{i} is longer in axis {axis}", lambda i=i, a=axis: replaced(i, longer(flat[i], a))
            )
    if not out.kind.startswith("usm"):
        double = lambda x: again(x, torch.zeros(x.shape).double())  # noqa: E731
        yield Mutation("states", "out is float64", lambda: replaced(last, double(out)))
        yield Mutation("states", "lse is float64", lambda: replaced(last + 1, double(lse)))
    for wrong in (None, "text", 3.5, [1.0]):
        yield Mutation("states", f"one is {wrong!r}", lambda x=wrong: replaced(last, x), typed=True)
    yield Mutation("states", "an odd number", lambda: flat[:-1], typed=True)
    yield Mutation("states", "none", lambda: [], typed=True)
    yield Mutation("states", "a state of three", lambda: [(out, lse, lse)], typed=True)


# ---- numbers ------------------------------------------------------------------------------------


def wrong_features(case: Case) -> Iterator[Mutation]:
    function, facts = case.function, case.facts
    sdpa, cache = function == "attention", function == "flash_attn_with_kvcache"
    if function == "merge_states":
        return

    def numbers(name: str, *values: Any, names: tuple[str, ...] = (), either: bool = False) -> Iterator[Mutation]:
        for value in values:
            typed = not isinstance(value, int | float) or (isinstance(value, float) and name in INTEGERS)
            typed |= isinstance(value, int) and (abs(value) >= 2**63 or name in ("window_size", "rng"))
            yield Mutation(name, f"is {value!r}", lambda x=value: x, names, either, typed)

    scale = "scale" if sdpa else "softmax_scale"
    yield from numbers(scale, NAN, INF, -INF, "text", [1.0], 1j)
    yield from numbers(scale, 1e39, either=True)
    yield from numbers("softcap", -1.0, NAN, INF, "text", [1.0], 1j, names=("dropout_p",))
    windows: list[Any] = [(1, 2, 3), (1,), (), 5, "ab", ("a", "b"), (2.7, 0), (NAN, 0), (-2, 0), (0, -(2**31))]
    yield from numbers("window_size", *windows, (INF, 0))
    # Pages that a smaller window does not see may not be there.
    yield from numbers("window_size", (2**63, 0), (2**64, -1), (None, None), None, names=("block_table",), either=True)
    if not cache:
        yield from numbers("dropout_p", -0.1, 1.5, NAN, "text", [1.0], INF, -(2**31))
    yield from numbers("is_causal" if sdpa else "causal", "text", [1], object())
    yield from numbers("attention_chunk", -1, 2**30 + 1, 2**63, 2.5, NAN, "text", [1])
    if sdpa:
        heads, heads_k = case.arguments["query"].shape[-3:-2], case.arguments["key"].shape[-3:-2]
        if heads != heads_k and heads_k != (1,):
            yield Mutation("enable_gqa", "is not allowed", lambda: False, ("key",))
        if case.arguments.get("dropout_p"):
            yield from numbers("rng", (1,), (1, 2, 3), 5, ("a", "b"), (1.5, 0), (NAN, 0))
    if cache:
        yield from numbers("num_splits", -1, 129, 2**31, 2**63, -(2**63) - 1, 2.5, NAN, "text", None, [1])
        yield from numbers("unified_max", NAN, INF, -INF, "text", [1.0])
        if facts["rows"] > 1:
            yield from numbers("unified_max", 0.0, -3, names=("q",))
        if facts["batch"]:
            room = facts["capacity"] - facts["added"]
            least = -5 if case.way == "operator" else -1  # the operator's default is -1
            yield from numbers("cache_seqlens", least, room + 1, 2**31, 2**40, names=("cache_leftpad",))
        yield from numbers("cache_seqlens", 2**63, -(2**63) - 1, 2.5, NAN, "text", [3], 1j)
        for side in ("k_scale", "v_scale"):
            if side in case.arguments and not isinstance(case.arguments[side], Array):
                yield from numbers(side, 0.0, 0, -1.0, NAN, INF, "text", [1.0], 1j)
                yield from numbers(side, 1e39, 1e-60, 10**400, either=True)
            elif side not in case.arguments:
                yield from numbers(side, "text", [1.0])
        yield from numbers("rotary_interleaved", "text", [1])
        for name in ("k", "v", "rotary_cos", "rotary_sin"):
            if name in case.arguments:
                pair = {"k": "v", "v": "k", "rotary_cos": "rotary_sin", "rotary_sin": "rotary_cos"}[name]
                yield Mutation(name, "is not given", lambda: None, (pair, "rotary_cos"))
        if "k" in case.arguments:
            yield Mutation("cache_seqlens", "is not given", lambda: None)
    for name in ("max_seqlen", "max_seqlen_q", "max_seqlen_k"):
        if name in case.arguments:
            yield from numbers(name, -1, 2**31, 2**63, -(2**63) - 1, 2.5, NAN, "text", None, [1])
            least = facts["longest"][name]
            if least > 0 and on_host(case):
                yield from numbers(
                    name, least - 1, names=("cu_seqlens", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")
                )
    if "packed" not in function and case.way != "operator":
        yield from wrong_snippets(case)
    if "block_size" in case.arguments:
        yield from wrong_blocks(case)


INTEGERS = (
    "attention_chunk", "num_splits", "max_seqlen", "max_seqlen_q", "max_seqlen_k", "cache_seqlens", "window_size",
    "ignore_index", "workspace", "k", "seed", "position", "top_k",
)  # fmt: skip
STRINGS = ("b_layout", "reduction")
FLAGS = ("log", "return_lse", "min_p_last")


# ---- products -----------------------------------------------------------------------------------


def wrong_products(
    case: Case,
    required: tuple[str, ...],
    learned: tuple[str, ...] = (),
    leading: tuple[str, ...] = (),
    integers: tuple[str, ...] = (),
    names: tuple[str, ...] = (),
) -> Iterator[Mutation]:
    """What is wrong with an array of a product: `leading` ones have any axes in front, `integers` are of int64, too,
    and the first of the `required` ones not on its device are `names` that are not there, then."""
    for name, array in case.arguments.items():
        if not isinstance(array, Array):
            continue
        zeros, usm = torch.zeros(array.shape), array.kind.startswith("usm")
        for dtype in (torch.float64, torch.int64, torch.int16, torch.complex64):
            if not usm and not (name in integers and dtype in (torch.int64, torch.int16)):
                yield Mutation(name, f"is {dtype}", lambda d=dtype, a=array, z=zeros: again(a, z.to(d)))
        for wrong in ([1.0, 2.0], "text", object(), {"a": 1}, True, 5):
            yield Mutation(name, f"is a {type(wrong).__name__}", lambda w=wrong: w, typed=True)
        if name in required:
            yield Mutation(name, "is None", lambda: None, typed=True)
            yield Mutation(name, "has no axis", lambda a=array: again(a, torch.zeros((), dtype=a.dtype)), names)
        if name not in leading:
            more = zeros.to(array.dtype)[None]
            yield Mutation(name, f"has {more.dim()} axes", lambda a=array, m=more: again(a, m))
        if array.kind in ("torch", "xpu"):
            others = names if name == required[0] else ()
            yield Mutation(name, "is on meta", lambda a=array, z=zeros: z.to(a.dtype).to("meta"), others)
            if array.dtype in DTYPES.values() and name not in learned and case.way != "operator":
                yield Mutation(
                    name, "requires grad", lambda a=array, z=zeros: z.to(a.dtype).requires_grad_(), ("grad",)
                )


def wrong_numbers(*names: str, **values: tuple[Any, ...]) -> Iterator[Mutation]:
    """Numbers, and what is none, that arguments may not be; `names`: which may be named instead."""
    for name, wrongs in values.items():
        for value in wrongs:
            typed = not isinstance(value, int | float | str) or isinstance(value, bool)
            typed |= isinstance(value, int) and not -(2**63) <= value < 2**63
            typed |= (
                name in FLAGS
                or isinstance(value, str) != (name in STRINGS)
                or (isinstance(value, float) and name in INTEGERS)
            )
            yield Mutation(name, f"is {value!r}", lambda x=value: x, names, typed=typed)


# ---- results ------------------------------------------------------------------------------------


def wrong_results(draw: Draw, case: Case) -> Iterator[Mutation]:
    """Arrays that are written where that cannot be right."""
    arguments = case.arguments
    if case.function == "attention":
        q, k, v = (arguments[name] for name in ("query", "key", "value"))
        shape = (*q.shape[:-1], v.shape[-1])
        size = math.prod(shape)
        if case.way == "operator" or size == 0:
            return
        out = torch.zeros(shape, dtype=q.dtype)
        kind = Array(q.kind, q.shape, q.dtype, q.memory, q.strides, q.offset, True, q.keep)
        for axis in range(len(shape)):
            bigger = list(shape)
            bigger[axis] += 1
            yield Mutation(
                "out", f"is longer in axis {axis}", lambda s=bigger: again(kind, torch.zeros(s, dtype=q.dtype))
            )
        other = torch.float16 if q.dtype is torch.float32 else torch.float32
        yield Mutation("out", "is of another dtype", lambda: again(kind, out.to(other)))
        if q.kind == "numpy":
            yield Mutation("out", "is read-only", lambda: again(kind, out, writable=False))
        for wrong in (3, "text", [1.0]):
            yield Mutation("out", f"is {wrong!r}", lambda x=wrong: x)
        for axis, n in enumerate(shape[:-1]):
            if n > 1:
                layout = Layout(expanded=1 << axis)
                yield Mutation("out", f"is one element along axis {axis}", lambda x=layout: place(out, q.kind, x))
        for name, x in (("key", k), ("value", v), ("attn_mask", arguments.get("attn_mask"))):
            # What is copied first may be overwritten then.
            if not isinstance(x, Array) or x.guise or case.way != "direct" or x.strides[-1:] != (x.dtype.itemsize,):
                continue
            if x.kind == q.kind and (beside := overlapping(x, shape, q.dtype)) is not None:
                yield Mutation("out", f"overlaps {name}", lambda x=beside: x, (name,))
    if case.function == "flash_attn_with_kvcache" and case.facts["added"] and math.prod(arguments["k"].shape):
        k, v = arguments["k_cache"], arguments["v_cache"]
        if k.kind == "numpy":
            yield Mutation("k_cache", "is read-only", lambda: again(k, k.values(), writable=False))
        if k.shape == v.shape:
            yield Mutation("v_cache", "is k_cache", lambda: k, ("k_cache",))
        for axis, n in enumerate(k.shape[:-1]):
            if n > 1 and not (axis == 0 and len(case.facts["appended"]) < 2):
                layout = Layout(expanded=1 << axis)
                wrong = f"is one element along axis {axis}"
                if axis != 1 or len(case.facts["appended"]) > 1 or case.facts["added"] > 1:
                    yield Mutation("k_cache", wrong, lambda x=layout: place(k.values(), k.kind, x))


def overlapping(array: Array, shape: tuple[int, ...], dtype: torch.dtype) -> Array | None:
    """An output in the memory of an array, from its first element on; None: it has no room."""
    size = dtype.itemsize
    strides = [size * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    offset = array.offset // size * size
    if math.prod(array.shape) == 0 or min(array.strides, default=0) < 0:
        return None
    if offset + size * math.prod(shape) > array.memory.size:
        return None
    return Array(array.kind, shape, dtype, array.memory, tuple(strides), offset, True, array.keep)
