"""The programs in python/examples run; each compares its result with another way to it."""

import os
import sys
from pathlib import Path

import pytest
from cover import few
from over_ranks import run_program

EXAMPLES = sorted((Path(__file__).resolve().parent.parent / "python/examples").glob("*.py"))


@pytest.mark.parametrize("example", few(EXAMPLES, EXAMPLES[0]), ids=lambda path: path.stem)
def test_example_runs(example):
    pytest.importorskip("torch")
    if "transformers" in example.stem:
        pytest.importorskip("transformers")
    words, environment = [sys.executable, str(example)], dict(os.environ)
    if "torchrun" in example.read_text():
        words[1:1] = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        environment |= {"OMP_NUM_THREADS": "1", "DPCPP_CPU_NUM_CUS": "1"}  # of each rank
    done = run_program(words, timeout=300, env=environment)
    assert done.returncode == 0 and done.stdout, done.stderr


def test_there_are_examples():
    assert len(EXAMPLES) >= 6
