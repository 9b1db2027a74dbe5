"""What is refused is named as the caller names it: each bad call twice, without `words` and with one for each keyword."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import xeflash
from xeflash import _core
from xeflash.call.schema import BHSD, BSHD, OF_ATTENTION, ROWS, THD, BackwardArguments
from xeflash.runtime.interop import Placeholder

xeflash.attention  # noqa: B018  loads the kernels
OF_GRADIENTS = tuple(name for name in BackwardArguments.__annotations__ if name not in ROWS)
NAMES = [name for name in (*ROWS, *OF_GRADIENTS) if name not in ("function", "layout", "words")]
OTHERS = ("window_size", "gather_kv_indices")  # what callers say in the place of several
WORDS = {name: f"W_{name}" for name in (*NAMES, *OTHERS)}


def ones(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.ones(shape, dtype)


def int32(*values: Any) -> np.ndarray:
    return np.array(values, np.int32)


SIZES = {"q": (2, 5, 4, 64), "k": (2, 9, 2, 64), "v": (2, 9, 2, 64)}
DENSE = {name: ones(*shape) for name, shape in SIZES.items()}
SNIPPET = ("s + bias[0]", {"bias": ones(3), "n": 3})
CACHE = {"q": ones(2, 1, 4, 64), "k_cache": ones(2, 32, 2, 64), "v_cache": ones(2, 32, 2, 64)}
CACHE |= {"k": ones(2, 1, 2, 64), "v": ones(2, 1, 2, 64), "cache_seqlens": int32(3, 5)}
POOLS = {name: ones(6, 16, 2, 64) for name in ("k_cache", "v_cache")}
TABLE = int32((0, 1), (2, 3))
PACKED = {"q": ones(7, 4, 64), "cu_seqlens_q": int32(0, 3, 7), "max_seqlen_q": 4, "max_seqlen_k": 20}
DENSE_PACKED = {"k": ones(9, 2, 64), "v": ones(9, 2, 64), "cu_seqlens_k": int32(0, 4, 9)}
LSE, PACKED_LSE = ones(2, 4, 5), ones(4, 7)
PART = {"bottom_right": False, "q_start": 3, "k_start": int32(0, 1), "first_head": 0, "all_heads": 8}
TURNED = {"rotary_cos": ones(40, 8), "rotary_sin": ones(40, 8)}
GRADIENTS = {"out": DENSE["q"], "lse": LSE, "dout": DENSE["q"].copy(), "dlse": LSE.copy(), "wanted": ("q", "k", "v")}

# Calls that are right: a layout, and arguments.
BASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "dense": ("forward", BSHD, DENSE | {"alibi_slopes": ones(4), "s_aux": ones(4), "score_mod": SNIPPET}),
    "attention": ("forward", BHSD, {n: x.swapaxes(1, 2) for n, x in DENSE.items()} | {"attn_mask": ones(5, 9) > 0}),
    "documents": ("forward", BSHD, DENSE | {"document_ids": np.zeros(9, np.int32)}),
    "picks": ("forward", BSHD, DENSE | {"picks": ones(2, 5, 1, dtype=np.int32), "picked_spans": ones(2, 1, 1, dtype=np.int32)}),
    "packed": ("forward", THD, PACKED | DENSE_PACKED | {"seqused_k": int32(3, 4), "s_aux": ones(4)}),
    "part": ("forward", BSHD, DENSE | PART | {"other_lse": LSE, "out": ones(2, 5, 4, 64)}),
    "cache": ("forward", BSHD, CACHE | TURNED | {"cache_leftpad": int32(0, 1)}),
    "chosen": ("forward", BSHD, CACHE | {"cache_batch_idx": int32(1, 0)}),
    "beams": ("forward", BSHD, CACHE | {"beam_index": np.zeros((2, 32), np.int32), "k": None, "v": None}),
    "pages": ("forward", BSHD, CACHE | POOLS | {"block_table": TABLE, "unified_max": 3.0}),
    "int8": ("forward", BSHD, CACHE | {n: ones(2, 32, 2, 64, dtype=np.int8) for n in POOLS}
             | {"k_scale": ones(2, 32, 2), "v_scale": ones(2, 32, 2), "k": None, "v": None}),
    "packed pages": ("forward", THD, PACKED | POOLS | {"block_table": TABLE, "seqused_k": int32(20, 7)}),
    "gradients": ("backward", BSHD, DENSE | GRADIENTS),
    "sums": ("backward", BSHD, DENSE | GRADIENTS | {n: ones(*SIZES[n[1]]) for n in ("dq", "dk", "dv")}
             | {"out": None, "dlse": None, "delta": LSE}),
    "gradients of attention": ("backward", BHSD, {n: x.swapaxes(1, 2) for n, x in (DENSE | GRADIENTS).items()
                                                  if n in ("q", "k", "v", "out", "dout")}
                               | {"lse": LSE, "dlse": LSE, "wanted": ("q",)}),
    "gradients of packed": ("backward", THD, PACKED | DENSE_PACKED | {"out": PACKED["q"], "dout": PACKED["q"].copy()}
                            | {"lse": PACKED_LSE, "dlse": PACKED_LSE, "wanted": ("q",)}),
    "probabilities": ("probabilities", BSHD, DENSE | {"lse": LSE}),
    "arguments": ("check_arguments", BSHD, DENSE),
    "standard": ("standard_attention", BHSD, {n: x.swapaxes(1, 2) for n, x in DENSE.items()}),
}  # fmt: skip


def read_only(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


def wrong_arrays(x: np.ndarray) -> Iterator[Any]:
    """What is an array of the call, with each of its traits another one."""
    for dtype in (np.float64, np.float16, np.int32, np.int64, np.int8, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
        if dtype != x.dtype:
            yield x.astype(dtype)
    yield x[None]
    if x.ndim:
        yield x[0]
    for axis in range(x.ndim):
        yield np.concatenate([x, x], axis)
        yield x.take(range(x.shape[axis] - 1), axis)
        yield np.repeat(x, 3, axis)[(slice(None),) * axis + (slice(None, None, 3),)]
        yield np.broadcast_to(x.take([0], axis), x.shape)
    yield read_only(x)
    for value in (-1, 99):
        yield np.full_like(x, value)


VALUES = (None, "x", 1.5, float("nan"), 1e300, -7, 2**40, 2**70, True, False, [1], ones(3), np.ma.array([1.0]), 3, 8)
VALUES += (
    ones(1, 1, 1, 1, 1, 1, 1, 1, 1),
    ones(2, 4, 5),
    int32(0, 3),
    int32(9, 9),
    (("q", "softcap")),
    ("captures", {}),
)
MANY = {f"n{i}": i for i in range(99)}
SNIPPETS = (MANY, {"x": 1e300}, {"x": 2**40}, {"x": ones(2, 2, 2, 2, 2)}, {"x": ones(0)}, {"x": ones(3)[::-1]})
SNIPPETS += ({"x": ones(3, dtype=np.float64)}, {f"n{i}": ones(2) for i in range(99)}, {"x": "no"})


def bad_calls(base: str) -> Iterator[dict[str, Any]]:
    """Most of them are refused; which, is not the question."""
    function, layout, given = BASES[base]
    given = {"function": "a call", "layout": layout} | given
    names = [n for n in NAMES if n in ROWS or function == "backward" or n == "lse"]
    for name in names:
        values: list[Any] = list(VALUES)
        if isinstance(given.get(name), np.ndarray):
            values += wrong_arrays(given[name])
        if name == "score_mod":
            values = [None, *(("s", captures) for captures in SNIPPETS)]
        values += [x for other, x in given.items() if other != name and isinstance(x, np.ndarray)]  # in one place
        for value in values:
            yield given | {name: value}
        yield {n: x for n, x in given.items() if n != name}
    for others, value in ((("k", "v"), None), (("k_cache", "v_cache"), "float16"), (("q", "k", "v"), "float16")):
        if all(isinstance(given.get(n), np.ndarray) for n in others):
            yield given | {n: value and given[n].astype(value) for n in others}
            yield given | {n: np.lib.stride_tricks.as_strided(x, x.shape, (0,) * x.ndim)
                                     for n, x in given.items() if n in others}  # fmt: skip
    # Two that go ill together.
    extras = {
        "causal": True, "dropout_p": 0.5, "softcap": 2.0, "attention_chunk": 4, "bottom_right": False, "window_left": 2,
        "enable_gqa": False, "residual": ones(2, 5, 4, 64), "cache_length": 3, "q_start": 3, "document_ids": int32(*[0] * 9),
        "block_table": TABLE, "beam_index": TABLE, "other_lse": LSE, "unified_max": 1.0, "rotary_cos": ones(40, 8),
        "cache_batch_idx": int32(0, 0), "k_scale": 2.0, "picks": ones(1, 5, 1, dtype=np.int32), "delta": LSE,
        "cache_seqlens": int32(40, 40), "picked_spans": ones(2, 1, 1, dtype=np.int32),
    }  # fmt: skip
    extras = {n: x for n, x in extras.items() if n in names}
    for first, x in extras.items():
        for second, y in extras.items():
            if first < second:
                yield given | {first: x, second: y}


class Accepted(Exception):
    """A call asks for its first kernel."""


def asked_for_a_kernel(_: object) -> Any:
    raise Accepted


def refusal(function: str, arguments: dict[str, Any], arch: str = "cpu-sse2") -> tuple[type, str] | None:
    """What is raised before a kernel is needed."""
    try:
        _core.describe(lambda: getattr(_core, function)(**arguments), arch, "", "", 1, asked_for_a_kernel)
    except Accepted:
        return None
    except Exception as error:  # its type is compared
        return type(error), str(error)
    return None


def usual_words(layout: int) -> dict[str, str]:
    """What messages say without a word of the caller's."""
    words = {name: name for name in WORDS}
    if layout == BHSD:
        words |= OF_ATTENTION | {"k_cache": "key", "v_cache": "value"}
    if layout == THD:
        words |= {"k_cache": "k", "v_cache": "v"}
    return words


VALUE = re.compile("'[^']*'|\"[^\"]*\"")
BARE = re.compile(rf"\b(?:{'|'.join(WORDS)}|(?:{'|'.join(OF_ATTENTION.values())})(?=\.| must))\b")


@pytest.mark.parametrize("base", BASES)
def test_a_refusal_says_what_its_caller_says(base):
    function, layout, given = BASES[base]
    assert refusal(function, {"function": "a call", "layout": layout} | given) is None
    usual, named = usual_words(layout), set()
    for arguments in bad_calls(base):
        before, after = refusal(function, arguments), refusal(function, arguments | {"words": WORDS})
        if before is None or not before[1].startswith("a call: "):  # Python's own
            assert after == before
            continue
        assert after is not None
        text = after[1]
        assert (after[0], re.sub(r"W_(\w+)", lambda m: usual[m[1]], text)) == before
        assert not BARE.findall(VALUE.sub("", text.removeprefix("a call: "))), text
        named |= set(re.findall(r"W_(\w+)", text))
    assert len(named) > 3


FAR = 1 << 28


@pytest.mark.parametrize("name", ["q", "k", "out", "dout"])
def test_rows_that_a_gpu_does_not_reach_are_named_so(name):
    given = {n: Placeholder((1, 5, 2, 64), "float32") for n in ("q", "k", "v", "out")}
    if name == "dout":
        given |= {"lse": Placeholder((1, 2, 5), "float32"), "wanted": ("q",)}
    given[name] = Placeholder((1, 5, 2, 64), "float32", strides=(5 * FAR, FAR, 64, 1))
    function = "backward" if name == "dout" else "forward"
    error, text = refusal(function, {"function": "a call", "words": WORDS} | given, "bmg") or (None, "")
    assert error is ValueError
    assert text.startswith(f"a call: W_{name} must have rows 0 to 2^27 - 1 bytes apart on a GPU, got {4 * FAR}; W_")


def test_a_mask_that_a_gpu_does_not_reach_is_named_so():
    q, mask = Placeholder((1, 1, 3, 64), "float32"), Placeholder((3, 3), "float32", strides=(1, FAR))
    given = {"function": "a call", "layout": BHSD, "words": WORDS, "q": q, "k": q, "v": q, "attn_mask": mask}
    text = f"a call: W_attn_mask must have a last stride of at most 2^26 on a GPU, got {FAR}"
    assert refusal("forward", given, "bmg") == (ValueError, text)


@pytest.mark.parametrize("words", [3, "q", [("q", "query")], {"q": 3}, {"q": b"x"}])
def test_words_are_a_dict_of_strings(words):
    given = {"function": "a call", "words": words, "q": 1, "k": 1, "v": 1}
    with pytest.raises(
        TypeError, match=f"^a call: words must be None or a dict of str to str, got {re.escape(repr(words))}"
    ):
        _core.forward(**given)


def test_words_may_say_little():
    with pytest.raises(TypeError, match="^a call: queries must be a torch tensor"):
        _core.forward(function="a call", words={"q": "queries"}, q=1, k=1, v=1)
    with pytest.raises(TypeError, match="^a call: q must be a torch tensor"):
        _core.forward(function="a call", words={}, q=1, k=1, v=1)
    with pytest.raises(TypeError, match="^a call: q must be a torch tensor"):
        _core.forward(function="a call", words=None, q=1, k=1, v=1)
