"""Calls of arrays without memory are refused as those of arrays are, with the same words."""

import re
from typing import Any

import numpy as np
import pytest
import xeflash
from test_words import BASES, bad_calls, refusal
from xeflash import _core
from xeflash.call.schema import ARRAYS
from xeflash.runtime.interop import Placeholder

xeflash.attention  # noqa: B018  loads the kernels
FORWARD = [base for base, (function, _, _) in BASES.items() if function == "forward"]
# Rules of what an array holds, and of memory that may not be written.
OF_VALUES = re.compile(
    "must start with 0|must not decrease|must end with|longest sequence|sequence's length|for sequence"
    "|must be 0 to .* at \\[|two sequences|last position|must be writable|see itself|key for each of the"
)


def without_memory(arguments: dict[str, Any]) -> dict[str, Any]:
    """Of the same shapes, strides and types; what is one array stays one."""
    made: dict[int, Any] = {}

    def one(x: Any) -> Any:
        if isinstance(x, tuple):
            return tuple(map(one, x))
        if isinstance(x, dict):
            return {name: one(y) for name, y in x.items()}
        if type(x) is not np.ndarray:
            return x
        strides = tuple(step // x.itemsize for step in x.strides)
        return made.setdefault(id(x), Placeholder(x.shape, x.dtype.name, strides=strides))

    return {name: one(x) if name in ARRAYS or type(x) is tuple else x for name, x in arguments.items()}


def refusal_of_shapes(arguments: dict[str, Any]) -> tuple[type, str] | None:
    try:
        _core.check_shapes(**without_memory(arguments))
    except Exception as error:  # its type is compared
        return type(error), str(error)
    return None


@pytest.mark.parametrize("base", FORWARD)
def test_shapes_are_refused_as_arrays_are(base):
    refused = 0
    for arguments in bad_calls(base):
        real, found = refusal("forward", arguments), refusal_of_shapes(arguments)
        if real is None or not OF_VALUES.search(real[1]):
            assert found == real
            refused += found is not None
    assert refused > 500


HOST = {name: Placeholder((1, 5, 2, 64), "float32") for name in "qkv"}
XPU = {name: Placeholder((1, 5, 2, 64), "float32", xpu=1) for name in "qkv"}


def test_placeholders_say_where_they_lie():
    _core.check_shapes(function="a call", **XPU)
    with pytest.raises(ValueError, match=r"^a call: k must be on the device of q \(xpu:1\), got host memory$"):
        _core.check_shapes(function="a call", **XPU | {"k": HOST["k"]})
    with pytest.raises(ValueError, match=r"^a call: v must be on the device of q \(host memory\), got xpu:1$"):
        _core.check_shapes(function="a call", **HOST | {"v": XPU["v"]})
    other = Placeholder((1, 5, 2, 64), "float32", xpu=0)
    with pytest.raises(ValueError, match=r"^a call: out must be on the device of Q \(xpu:1\), got xpu:0$"):
        _core.check_shapes(function="a call", words={"q": "Q"}, **XPU, out=other)
