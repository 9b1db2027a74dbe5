"""What tests of the tuner share: a device that is not there, candidates that are planted, processes that answer."""

import json
import sys
from pathlib import Path

import pytest
from planted import TINY, TUNING
from xeflash.tuner import cases, measure
from xeflash.tuner.cases import Row


@pytest.fixture
def row():
    return Row("a key", ((16, 48), (32, 48), (64, 48), (128, 48)), (TINY,))


@pytest.fixture
def answering():
    """The command of a process that answers by a plan for each lane."""

    def words(**plan):
        by_lane = {name.removeprefix("lane"): what for name, what in plan.items()}
        script = str(Path(__file__).with_name("answering.py"))
        return [sys.executable, script, TUNING.to_json(), json.dumps(by_lane)]

    return words


@pytest.fixture
def planted(monkeypatch):
    """Four candidates for each kernel, the first of which is the tables', and no compiler that would make them."""
    of_tables = cases.candidates
    monkeypatch.setattr(cases, "candidates", lambda desc: (of_tables(desc)[0], (8, 8), (8, 24), (24, 8)))
    monkeypatch.setattr(measure, "sources_of", lambda row: [[] for _ in row.candidates])
