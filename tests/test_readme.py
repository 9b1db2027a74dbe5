"""README says what is true: its examples run, and its matrix is what the tests cover."""

import doctest
import importlib
import re
import subprocess
import sys

import pytest
import support_matrix
import xeflash

TEXT = support_matrix.README.read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_support_matrix_is_current():
    assert support_matrix.with_matrix(TEXT) == TEXT, "run: python tests/support_matrix.py"


def test_matrix_has_no_gap():
    assert "|  |" not in support_matrix.matrix()


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_example_runs(number):
    # In a process of its own: a device is simulated only if SYCL was not asked for devices before.
    done = subprocess.run([sys.executable, "-c", EXAMPLES[number]], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_readme_has_examples():
    assert EXAMPLES


@pytest.mark.parametrize("name", xeflash.__all__)
def test_public_function_has_a_running_example(name):
    function = getattr(xeflash, name)
    module = importlib.import_module(function.__module__)
    (example,) = [t for t in doctest.DocTestFinder(recurse=False).find(function, name, module) if t.examples]
    result = doctest.DocTestRunner().run(example)
    assert result.attempted and not result.failed
