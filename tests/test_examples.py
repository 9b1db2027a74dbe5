"""The programs in python/examples run; each compares its result with another way to it."""

import subprocess
import sys
from pathlib import Path

import pytest
from cover import few

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "python/examples").glob("*.py"))


@pytest.mark.parametrize("example", few(EXAMPLES, EXAMPLES[0]), ids=lambda path: path.stem)
def test_example_runs(example):
    pytest.importorskip("torch")
    if "transformers" in example.stem:
        pytest.importorskip("transformers")
    done = subprocess.run([sys.executable, str(example)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and done.stdout, done.stderr


def test_there_are_examples():
    assert len(EXAMPLES) >= 4
