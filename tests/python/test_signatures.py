"""Public signatures stay: what stands before the * is that of torch or flash-attn 2, by position, and keywords follow it.

Where one changes on purpose, this writes the file anew:

    python tests/python/test_signatures.py
"""

import inspect
from pathlib import Path

import pytest
import xeflash
from xeflash.call import schema

FILE = Path(__file__).with_name("signatures.txt")


def found():
    return [f"{name}{inspect.signature(getattr(xeflash, name))}" for name in sorted(xeflash.__all__)]


def test_signatures_are_those_of_the_file():
    kept = FILE.read_text(encoding="utf-8").splitlines()
    assert found() == kept, "if that is meant: python tests/python/test_signatures.py"


@pytest.mark.parametrize(
    "name", [name for name in xeflash.__all__ if name == "attention" or name.startswith("flash_attn")]
)
def test_defaults_are_those_of_the_schema(name):
    """What is not given is not handed on: the extension has its own default for it, and attention() a few others."""
    ours = {theirs: row for row, theirs in schema.OF_ATTENTION.items()} if name == "attention" else {}
    compared = 0
    for parameter, told in inspect.signature(getattr(xeflash, name)).parameters.items():
        row = ours.get(parameter, parameter)
        if row in schema.ROWS and told.default is not told.empty:
            others = schema.DEFAULTS_OF_ATTENTION if name == "attention" else {}
            assert told.default == others.get(row, schema.ROWS[row].more.default), parameter
            compared += 1
    assert compared >= 5


def test_defaults_of_matmul_softmax_are_those_of_the_schema():
    told = inspect.signature(xeflash.matmul_softmax).parameters
    assert set(told) == set(schema.ROWS_OF_SOFTMAX) - {"function"}
    for name, parameter in told.items():
        if name not in ("a", "b"):
            assert parameter.default == schema.ROWS_OF_SOFTMAX[name].more.default, name


if __name__ == "__main__":
    FILE.write_text("".join(f"{line}\n" for line in found()), encoding="utf-8")
