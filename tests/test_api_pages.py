"""The pages that CONTRIBUTING's command renders from docstrings tell every public name, and all arguments of functions."""

import importlib
import inspect
import re
from pathlib import Path

import pytest
import xeflash

CONTRIBUTING = Path(__file__).resolve().parent.parent / ".github/CONTRIBUTING.md"
MODULES = re.findall(r"\bxeflash[\w.]*", re.search(r"`pdoc ([^`]*)`", CONTRIBUTING.read_text())[1])


def public(module):
    """The names that pdoc shows of a module, with their values."""
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
    return {name: getattr(module, name) for name in getattr(module, "__all__", own) if not name.startswith("_")}


def told(function, names):
    """Its docstring, and those of the functions that this refers to."""
    text = inspect.getdoc(function) or ""
    for name in re.findall(r"\b[Aa]s (?:in |by )?`*(?:xeflash\.)?(\w+)", text):
        if (other := names.get(name)) not in (None, function):
            text += told(other, names)
    return text


@pytest.mark.parametrize("name", MODULES)
def test_public_names_are_told_with_their_arguments(name):
    for library in {"torch", "transformers"} & set(name.replace("_", ".").split(".")):
        pytest.importorskip(library)
    module = importlib.import_module(name)
    names = public(xeflash) | public(module)
    for shown, value in public(module).items():
        text = told(value, names) if callable(value) else "a constant"
        assert text, shown
        if inspect.isfunction(value) and "arguments are those" not in text:
            arguments = [a for a in inspect.signature(value).parameters if a not in ("args", "kwargs")]
            assert [a for a in arguments if not re.search(rf"\b{a}\b", text)] == [], shown


def test_there_are_modules():
    assert "xeflash" in MODULES and "xeflash.sim" in MODULES and len(public(xeflash)) > 8
