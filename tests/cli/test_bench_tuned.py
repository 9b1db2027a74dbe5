"""`bench attention --tuned`: times with the tables' choices beside a tuning's."""

import dataclasses
import io
import json
import os

import pytest
from xeflash.bench import shares, worker
from xeflash.bench.attention import BENCHMARK, LAYOUT
from xeflash.bench.cases import Case
from xeflash.bench.rows import Result
from xeflash.bench.runner import Options
from xeflash.bench.shares import levels_of, shares_here
from xeflash.cli import bench_calls, bench_tuned, main
from xeflash.selftest.pool import Died
from xeflash.tune import tuned
from xeflash.tune.table import candidates, schedule_candidates
from xeflash.tune.tuned import Level

CASE = Case("decode", "fp32", 1, 4, 4, 64, 1, 127, causal=False)
WORDS = ["bench", "attention", "--device", "cpu", "--heads", "4", "--head-dim", "64", "--kv-len", "127", "--no-peak"]
WORDS += ["--phase", "decode", "--dtype", "fp32"]
pytestmark = pytest.mark.usefixtures("small_work")


def result(*samples, **fields):
    return Result(LAYOUT.row(**dataclasses.asdict(CASE), rounds=len(samples), **fields), {"xeflash": samples})


def test_ratios_are_those_of_each_round():
    row = bench_tuned.with_untuned(result(2.0, 4.0, 10.0), result(3.0, 4.0, 40.0)).row
    assert (row.untuned_median_ms, row.ratio) == (4.0, 1.0)
    assert (row.ratio_per_round, row.ratio_low, row.ratio_high) == (1.5, 1.0, 4.0)


@pytest.mark.parametrize("name", ["off", "on"])
def test_a_side_that_fails_fails_the_row(name):
    bad, good = result(status="failed", note="wrong result"), result(1.0)
    row = bench_tuned.with_untuned(*((bad, good) if name == "on" else (good, bad))).row
    assert (row.status, row.note, row.ratio) == ("failed", f"--tuned {name}: wrong result", None)


class Workers:
    """In the place of two processes: each needs a request for the case and two for its turns."""

    def __init__(self, dies=""):
        self.asked, self.ended, self.dies = [], 0, dies

    def ask(self, name, request):
        self.asked.append(name)
        if name == self.dies:
            raise Died("signal 9: killed")
        if self.asked.count(name) % 3:
            return {}
        return {"result": (dataclasses.asdict(result(1.0, 1.0).row), {"xeflash": [1.0, 1.0]}, None)}

    def end(self):
        self.ended += 1


def test_samples_take_turns(monkeypatch):
    workers = Workers()
    monkeypatch.setattr(bench_tuned, "_Workers", lambda options: workers)
    rows = [found.row for found in bench_tuned.benchmark().run([CASE, CASE], Options(rounds=2))]
    assert workers.asked == ["off", "on", "off", "on", "on", "off"] * 2 and workers.ended == 1
    assert [(row.status, row.ratio) for row in rows] == [("ok", 1.0)] * 2


def test_a_process_that_dies_fails_its_case_only(monkeypatch):
    workers = Workers(dies="on")
    monkeypatch.setattr(bench_tuned, "_Workers", lambda options: workers)
    first = bench_tuned.benchmark().run([CASE, CASE], Options(rounds=2))
    assert (row := next(first).row).status == "failed" and row.note == "--tuned on: signal 9: killed"
    workers.dies, workers.asked = "", []
    assert next(first).row.status == "ok" and workers.ended == 1


def test_a_worker_waits_for_each_turn():
    class Requests(io.StringIO):
        def readline(self):
            taken.append(answers.getvalue().count("\n"))
            return super().readline()

    taken, answers = [], io.StringIO()
    options = {"device": "cpu", "rounds": 2, "seed": 0, "compare_torch": False}
    worker.serve(options, Requests(json.dumps(dataclasses.asdict(CASE)) + "\n\n\n"), answers)
    greeting, *turns, last = map(json.loads, answers.getvalue().splitlines())
    assert (greeting, turns) == ({}, [{}, {}])
    assert taken == [1, 2, 3, 4]  # answers before each request is read
    found = worker.result_of(last)
    assert found.row.status == "ok" and len(found.samples_ms["xeflash"]) == 2
    assert found.work.by == (found.row.arch, "fp32") and found.work.bytes_read == CASE.kv_bytes


@pytest.mark.parametrize("told", [None, "off", "tuning.json"])
def test_a_process_is_told_where_its_choices_come_from(monkeypatch, told):
    monkeypatch.delenv("XEFLASH_TUNED", raising=False)
    if told:
        monkeypatch.setenv("XEFLASH_TUNED", told)
    assert bench_tuned.environment("off")["XEFLASH_TUNED"] == "off"
    assert bench_tuned.environment("on").get("XEFLASH_TUNED") == (None if told == "off" else told)


@pytest.fixture
def own_tuning(monkeypatch, tmp_path):
    """A file that has the tables' choices for the case; the levels that rows have then."""
    desc, *_ = kernels = shares_here(CASE, "cpu").kernels
    choices = {tuned.key_of(desc): tuned.Choice(candidates(desc)[0]) for desc in kernels}
    schedule = {name: tuned.Choice(values[0]) for name, values in schedule_candidates(desc.arch).items()}
    tuning = tuned.new_tuning(desc.arch, desc.device, desc.driver)
    file = tmp_path / "tuning.json"
    file.write_text(dataclasses.replace(tuning, choices=choices, schedule=schedule).to_json())
    monkeypatch.setenv("XEFLASH_TUNED", str(file))
    tuned.forget()
    levels = levels_of(kernels)
    assert levels.endswith("; schedule: file")
    yield levels
    tuned.forget()


def test_a_worker_ends_with_who_started_it():
    request = io.StringIO(json.dumps(dataclasses.asdict(CASE)) + "\n\n")
    with pytest.raises(SystemExit):
        worker.serve({"device": "cpu", "rounds": 3, "compare_torch": False}, request, answers := io.StringIO())
    assert answers.getvalue().count("\n") == 3  # ready, and before two turns


def test_both_are_measured_in_processes(own_tuning, capsys):
    assert main([*WORDS, "--tuned", "off,on", "--rounds", "2", "--format", "json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["status"], row["tiles_from"], row["torch_form"]) == ("ok", own_tuning, None)
    assert row["untuned_median_ms"] > 0 and row["ratio_low"] <= row["ratio_per_round"] <= row["ratio_high"]
    assert [len(row["samples_ms"][name]) for name in ("xeflash", "untuned")] == [2, 2]


def test_one_of_both_is_measured_here(own_tuning, monkeypatch, capsys):
    for told, level in (("on", own_tuning), ("off", "table")):
        tuned.forget()
        assert main([*WORDS, "--rounds", "1", "--compare", "none", "--format", "json", "--tuned", told]) == 0
        (row,) = json.loads(capsys.readouterr().out)["rows"]
        assert (row["tiles_from"], row["untuned_median_ms"]) == (level, None)
    monkeypatch.setattr(bench_calls, "_measure", lambda *_, **__: "XEFLASH_TUNED" in os.environ)
    assert main([*WORDS, "--tuned", "on"]) is False


def test_torch_is_not_measured_beside_both(capsys):
    assert main([*WORDS, "--tuned", "off,on", "--compare", "torch"]) == 2
    assert capsys.readouterr().err == "xeflash bench: --compare must be none with --tuned off,on, got torch\n"


def test_tables_say_what_is_compared():
    rows = [bench_tuned.with_untuned(result(1.0, tiles_from="file"), result(2.0))]
    tables = bench_tuned.benchmark().layout.shown(rows, wide=False)
    assert {name: tables[0].columns[name] for name in ("untuned ms", "ratio per round", "tiles from")} == {
        "untuned ms": ["2.00"], "ratio per round": ["2.00x"], "tiles from": ["file"]
    }  # fmt: skip
    assert "of the untuned time / ours" in bench_tuned.benchmark().layout.legend(tables)[0]
    assert "tiles from" not in LAYOUT.shown(rows, wide=False)[0].columns
    assert "tiles from" in LAYOUT.shown(rows, wide=True)[0].columns


def test_a_training_step_names_the_levels_of_both_passes(monkeypatch):
    levels = {"flash_fwd": Level("file")}
    monkeypatch.setattr(shares, "level_of", lambda desc: levels.get(desc.algorithm, Level("table")))
    case = dataclasses.replace(CASE, phase="train", seq_q=23, seq_k=23)
    row = BENCHMARK.run_case(case, Options(rounds=1, compare_torch=False)).row
    assert sorted(row.tiles_from.partition(";")[0].split(", ")) == ["file", "table"]
