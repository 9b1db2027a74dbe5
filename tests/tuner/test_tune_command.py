"""`xeflash tune`: what it refuses, keeps and says, with processes that answer in the place of a device."""

import importlib.util
import json
import os
import signal
import threading
import time

import pytest
from planted import TUNING
from xeflash.cli import main
from xeflash.cli import tune as command
from xeflash.tune import tuned
from xeflash.tune.tuned import Tuning
from xeflash.tuner import workers

SOME = ["tune", "--device", "cpu", "--head-dim", "64", "--dtype", "fp32"]


@pytest.fixture
def device(planted, answering, monkeypatch, tmp_path):
    """Lets the command have processes that answer by a plan."""

    def has(**plan):
        monkeypatch.setattr(workers, "command", lambda device: answering(**plan))

    monkeypatch.setenv("XEFLASH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("XEFLASH_TUNED", "off")  # the command sets it
    has()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield has
    for number, handler in before.items():  # the command ignores those after the first
        signal.signal(number, handler)


def run(*options):
    return main([*SOME, *options])


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        (["--device", "sim:bmg"], "sim:bmg needs --output or --json: counts are not kept"),
        (["--by", "counts"], "--by must be times for a device that is there, counts for sim:*"),
        (["--device", "sim:pvc", "--by", "times"], "got times for sim:pvc"),
        (["--model-shapes", "llama-3-8b"], "--head-dim must be left out with --model-shapes"),
        (["--json", "no/such/folder/x"], "--json must be a file that can be written, got no/such/folder/x"),
        (["--output", "no/such/folder/x"], "--output must be a file that can be written, got no/such/folder/x"),
        (["--json", "x", "--output", os.path.abspath("x")], "--output must be another file than --json, got"),
        (["--minutes", "0"], "a positive whole number such as 4096 or 4k, at most 2147483648, is wanted, got '0'"),
        (["--phase", "prefil"], "choose from prefill, decode, verify, train, got 'prefil'"),
    ],
)
def test_what_does_not_go_together_is_refused(options, rule, capsys):
    try:
        code = run(*options)
    except SystemExit as error:
        code = error.code
    assert code == 2
    assert rule in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_what_it_needs_is_named(monkeypatch, capsys, name):
    monkeypatch.setattr(importlib.util, "find_spec", lambda asked: None if asked == name else object())
    assert run() == 2
    assert f"it needs {name}" in capsys.readouterr().err


def test_a_device_that_cannot_be_opened_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(workers, "command", lambda device: ["sh", "-c", """echo '{"refused": "no GPU"}'"""])
    monkeypatch.setenv("XEFLASH_TUNED", "off")
    assert run() == 2
    assert capsys.readouterr().err == "xeflash tune: no GPU\n"


def test_a_tuning_that_cannot_be_kept_is_refused(device, capsys, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XEFLASH_CACHE_DIR", str(tmp_path / "file"))
    assert run() == 2
    assert "file cannot be used: Not a directory; give --output FILE, or set" in capsys.readouterr().err


def test_winners_are_kept_in_the_file_of_the_device(device, capsys, tmp_path):
    device(lane2=0.5)
    assert run("--phase", "prefill", "--json", str(tmp_path / "all.json")) == 0
    (key,) = Tuning.from_json(tuned.path_of(TUNING.device).read_text()).choices
    chosen = tuned.read(TUNING.device).choices[key]
    assert chosen.value == (8, 24) and len(chosen.trials) == 4
    said = capsys.readouterr()
    assert "1 rows with 4 candidates on a CPU; 0 kernels are to be compiled" in said.err
    line = next(line for line in said.out.splitlines() if key in line)
    assert "8 x 24" in line and str(tuned.path_of(TUNING.device)) in said.out
    told = json.loads((tmp_path / "all.json").read_text())
    assert told["complete"] and told["left"] == [] and key in told["tuning"]["choices"]


def test_another_file_is_written_in_the_place_of_the_devices(device, capsys, tmp_path):
    assert run("--phase", "prefill", "--output", str(tmp_path / "own.json")) == 0
    assert len(Tuning.from_json((tmp_path / "own.json").read_text()).choices) == 1
    assert not tuned.path_of(TUNING.device).exists()
    assert f"XEFLASH_TUNED={tmp_path / 'own.json'}" in capsys.readouterr().out


def test_a_row_whose_table_has_no_result_is_a_fault(device, capsys, tmp_path):
    device(lane0="dies", lane2=0.5)
    assert run("--phase", "prefill", "--json", str(tmp_path / "all.json")) == 1
    assert "flash_fwd float32 d64 rows128: the choice of the tables has no result: signal 11" in capsys.readouterr().err
    told = json.loads((tmp_path / "all.json").read_text())
    assert list(told["no_result"]) == ["flash_fwd float32 d64 rows128"] and told["tuning"]["choices"] == {}


def test_a_candidate_that_dies_is_told_at_once(device, capsys):
    device(lane1="dies")
    assert run("--phase", "prefill") == 0
    assert "flash_fwd float32 d64 rows128: (8, 8): signal 11" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_keeps_what_was_found(device, capsys, tmp_path, monkeypatch, number):
    keep, rows = command._Keeper.keep, []

    def keeping(self, found, row):
        keep(self, found, row)
        rows.append(row)
        if len(rows) == 2:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(command._Keeper, "keep", keeping)
    assert run("--json", str(tmp_path / "all.json")) == 130
    kept = tuned.read(TUNING.device).choices
    assert set(kept) == {row.key for row in rows[:2]}
    told = json.loads((tmp_path / "all.json").read_text())
    assert not told["complete"] and set(told["tuning"]["choices"]) == set(kept)
    assert "rows are left (interrupted)" in capsys.readouterr().err


def test_an_interrupt_ends_processes_that_hang(device):
    device(lane1="hangs")
    start = time.monotonic()
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    assert run() == 130
    assert time.monotonic() - start < workers.SECONDS / 2


def test_the_minutes_are_a_bound(device, capsys, monkeypatch):
    monkeypatch.setattr(command, "_SECONDS_OF_MINUTE", 0.3)
    assert run("--minutes", "1") == 0
    said = capsys.readouterr().err
    assert "rows are left (--minutes 1): " in said


def test_what_cannot_be_kept_is_said(device, capsys, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command, "save", full)
    assert run("--phase", "prefill") == 2
    assert "could not be kept: [Errno 28] No space left on device" in capsys.readouterr().out
