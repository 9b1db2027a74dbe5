"""`xeflash report` with processes that answer, hang and die; a kernel that does not end is a real one."""

import getpass
import itertools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from xeflash.cli import facts, main, report
from xeflash.report import journal
from xeflash.report.cases import CASES
from xeflash.selftest import cases
from xeflash.selftest.cases import all_cases

FIRST = next(iter(all_cases()))
PREFILL = "prefill bf16 B4 H8/8 D64 2048x2048"

# Answers with ok, or as `answers` says for some names; "hang" does not answer.
WORKER = """
import json, os, signal, sys, time
print(json.dumps({"on_gpu": True, "name": "Arc B580", "driver": "1.6", "arrays": "USM", "compute_units": 160}), flush=True)
answers = json.loads(sys.argv[1])
for line in sys.stdin:
    name = json.loads(line).get("name")
    answer = answers.get(name, answers.get("*", {"status": "ok", "note": ""}))
    if answer == "hang":
        time.sleep(100)
    print(json.dumps(answer), flush=True)
"""
TIMES = {"ms": 2.0, "gbytes_per_s": 300.0, "tflops": 50.0, "rounds": 9, "peaks": {"memory GB/s": 406.5}}


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XEFLASH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def worker_says(monkeypatch):
    few = {name: case for name, case in all_cases().items() if name == FIRST or name.startswith("top_k")}
    monkeypatch.setattr(cases, "all_cases", lambda: few)
    monkeypatch.setattr(cases, "large_cases", lambda on_gpu: {})
    monkeypatch.setattr(facts, "gather", facts.Facts)

    def says(answers):
        words = [sys.executable, "-c", WORKER, json.dumps(answers)]
        monkeypatch.setattr(report, "command", lambda *_: words)

    return says


def data(file="xeflash-report-xpu.json"):
    return json.loads(Path(file).read_text())


def test_all_parts_are_in_the_file_and_a_row_is_printed(worker_says, capsys):
    worker_says({name: {"status": "ok", "note": "", **TIMES} for name in CASES})
    assert main(["report", "--device", "xpu"]) == 0
    output, found = capsys.readouterr().out, data()
    assert found["complete"] and found["valid"] and found["timed"] and found["doubts"] == []
    assert list(found) == [
        *("report", "complete", "environment", "last_report", "doctor", "timed", "device", "selftest", "software"),
        *("limits", "card", "peaks", "valid", "doubts", "row"),
    ]
    assert [row["name"] for row in found["card"]["cases"]] == list(CASES)
    assert output.splitlines()[-1] == found["row"] and "| Arc B580 | 1.6 |" in found["row"]
    assert (
        "peaks as measured: memory GB/s 406.5" in output
        and '"A first run on a card"' in output
        and found["limits"]["gbytes_per_s"] == 456
    )
    assert journal.left() is None


@pytest.mark.parametrize(
    ("name", "answer", "why"),
    [
        (FIRST, {"status": "wrong", "note": "out at [1]: got 3.0"}, f"selftest: {FIRST}: wrong: out at [1]: got 3.0"),
        (PREFILL, {"status": "error", "note": "lost"}, f"card: {PREFILL}: error: lost"),
        (PREFILL, {"status": "ok", **TIMES, "tflops": 462.0}, f"card: {PREFILL}: ok: above the peak of 116.7 TFLOP/s"),
    ],
)
def test_what_is_wrong_or_cannot_be_ends_with_1(worker_says, capsys, name, answer, why):
    worker_says({name: answer})
    assert main(["report", "--device", "xpu"]) == 1
    output = capsys.readouterr().out
    assert why in output and "462" not in output and data()["row"].endswith("| no |") and not data()["valid"]


def test_a_case_that_hangs_is_named_with_its_kernels_and_the_others_run(worker_says, monkeypatch, capsys):
    worker_says({PREFILL: "hang"})
    monkeypatch.setattr(report, "SECONDS", 1.0)
    begin = report.journal.Journal.begin
    monkeypatch.setattr(report._Part, "begin", lambda self, request: begin(self._journal, request["name"], ["flash"]))
    assert main(["report", "--device", "xpu"]) == 1
    assert f"card: {PREFILL}: died: no answer within 1 s; kernels flash" in capsys.readouterr().out
    states = {row["name"]: row["status"] for row in data()["card"]["cases"]}
    assert states.pop(PREFILL) == "died" and set(states.values()) == {"ok"}


def test_calls_are_left_out_when_the_time_is_over(worker_says, monkeypatch):
    worker_says({})
    seconds = itertools.count(0, 10)
    monkeypatch.setattr(report, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    assert main(["report", "--device", "xpu", "--minutes", "1"]) == 0
    assert [row["status"] for row in data()["card"]["cases"]] == ["ok"] * 5 + ["left out"] * 8


TUNER = """
import signal, sys, time
from pathlib import Path
file, code = Path(sys.argv[1]), int(sys.argv[2])
signal.signal(signal.SIGTERM, lambda *_: (file.write_text('{"format": 1}'), sys.exit(130)))
if code == 130:
    file.with_name("ready").touch()
    time.sleep(100)
file.write_text('{"format": 1}')
sys.exit(code)
"""


class Tuner(subprocess.Popen):
    """A process in the place of the tuner, which an interrupt meets if it is to end with 130."""

    code, asked = 0, ()

    def __init__(self, words, env, **how):
        assert env["XEFLASH_KERNEL_LOG"].endswith("report.journal")
        Tuner.asked = words
        super().__init__([sys.executable, "-c", TUNER, words[-1], str(self.code)], **how)

    def wait(self, timeout=None):
        ready = Path(self.asked[-1]).with_name("ready")
        while self.code == 130 and timeout is None:
            if ready.exists():
                raise KeyboardInterrupt
            time.sleep(0.01)
        return super().wait(timeout)


@pytest.mark.parametrize("code", [0, 1, 130])
def test_the_tuner_is_a_part(worker_says, monkeypatch, code):
    """Also if an interrupt ends it, which then keeps what it found."""
    worker_says({})
    for name in ("XEFLASH_KERNEL_LOG", "XEFLASH_TUNED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Tuner, "code", code)
    monkeypatch.setattr(report, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": Tuner}))
    assert main(["report", "--device", "xpu", "--tune", "--minutes", "6"]) == code
    assert Tuner.asked[2:8] == ["xeflash", "tune", "--device", "xpu", "--minutes", "3"]
    failed = {"failed": f"xeflash tune ended with {code}"} if code else {}
    assert data()["tuning"] == {"format": 1, **failed} and data()["complete"] == (code != 130)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--json", "none/report.json"], "--json must be a file that can be written, got none/report.json"),
        (["--tune", "--no-times"], "--tune must be left out with --no-times"),
        (["--tune", "--minutes", "1"], "--minutes must be at least 2 with --tune, which has half of them, got 1"),
        (["--tune"], "--tune must be left out where XEFLASH_TUNED is set"),
    ],
)
def test_refusals_end_with_2_before_all_work(monkeypatch, capsys, words, why):
    monkeypatch.setenv("XEFLASH_TUNED", "off")
    monkeypatch.setattr(facts, "gather", lambda: pytest.fail("it began"))
    assert main(["report", *words]) == 2
    assert why in capsys.readouterr().err


def test_a_device_that_runs_nothing_ends_with_2(worker_says, capsys):
    worker_says({"*": {"status": "error", "note": "ValueError: it is broken"}})
    assert main(["report", "--device", "xpu"]) == 2
    assert "no kernel runs on Arc B580: ValueError: it is broken; see: xeflash doctor" in capsys.readouterr().err
    assert not data()["complete"] and journal.left() is None


def test_a_second_report_is_refused(worker_says, capsys):
    with journal.kept("cpu"):
        assert main(["report", "--device", "cpu"]) == 2
    assert "another report of this user runs" in capsys.readouterr().err


INTERRUPTED = """
import sys
from xeflash.cli import facts, main, report
from xeflash.selftest import cases
facts.gather = facts.Facts
few = dict(list(cases.all_cases().items())[:1])
cases.all_cases = lambda: few
cases.large_cases = lambda on_gpu: {}
report.command = lambda *_: [sys.executable, "-c", sys.argv[1], sys.argv[2]]
code = main(["report", "--device", "xpu"])
assert not {"torch", "xeflash._core"} & set(sys.modules)  # a driver may crash whoever loads it
sys.exit(code)
"""


def test_an_interrupt_keeps_what_is_known():
    words = [sys.executable, "-c", INTERRUPTED, WORKER, json.dumps({PREFILL: "hang"})]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    file = Path("xeflash-report-xpu.json")
    end = time.monotonic() + 60
    while time.monotonic() < end and not (
        file.exists() and f'"name": "{PREFILL}",\n    "status": "running"' in file.read_text()
    ):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130 and "interrupted; xeflash-report-xpu.json has what is known" in errors
    states = {row["name"]: row["status"] for row in data()["card"]["cases"]}
    assert states[PREFILL] == "running" and not data()["complete"] and journal.left() is None


def test_a_journal_that_cannot_be_kept_is_told(capsys, tmp_path):
    (tmp_path / "cache").write_text("no folder")
    assert main(["report", "--device", "cpu"]) == 2
    assert f"its journal cannot be kept: {tmp_path / 'cache'}: Not a directory; try: export" in capsys.readouterr().err


# A real worker, and a call of years on the CPU: 32,768 queries that see 2^30 times the same key.
ENDLESS = """
import sys
import torch
import xeflash
from xeflash.selftest import cases
from xeflash.selftest.prepared import Prepared

class Endless:
    name = "endless"

    def prepare(self, arrays):
        x = torch.zeros(1, 1, 1, 64)
        k = x.expand(4096, 8, 2**30, 64)
        return Prepared(lambda: xeflash.attention(x.expand(4096, 8, 1, 64), k, k), lambda _: [], 1.0, 1.0)

small = cases.all_cases()
cases.all_cases = lambda: {FIRST: small[FIRST], "endless": Endless()}
cases.large_cases = lambda on_gpu: {}
"""
REAL_WORKER = """
import functools
from xeflash.report import journal, worker
from xeflash.selftest import worker as answers
answers.all_cases = cases.all_cases
answers.main(functools.partial(worker.respond, journal.Journal(sys.argv[2])))
"""
REAL_REPORT = """
from xeflash.cli import facts, main, report
from xeflash.report.cases import CASES
from xeflash.selftest import pool

facts._probe = dict  # which takes seconds
greet = pool.Worker.greet

def limited(worker):
    greet(worker)  # which imports torch
    worker._seconds = float(sys.argv[1])

pool.Worker.greet = limited
CASES.clear()
report.command = lambda device, path: [sys.executable, "-c", sys.argv[2], device, path]
sys.exit(main(["report", "--device", "cpu", "--no-times"]))
"""


def real(seconds):
    patched = f"FIRST = {FIRST!r}\n{ENDLESS}"
    words = [sys.executable, "-c", patched + REAL_REPORT, str(seconds), patched + REAL_WORKER]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def children(pid):
    tasks = Path(f"/proc/{pid}/task")
    return [int(x) for task in tasks.iterdir() for x in (task / "children").read_text().split()]


def test_a_kernel_that_does_not_end_is_named_by_its_report_and_if_that_is_killed_by_the_next(monkeypatch):
    process = real(60.0)
    end = time.monotonic() + 60
    file = Path(os.environ["XEFLASH_CACHE_DIR"], "report.journal")
    while time.monotonic() < end and not (file.exists() and "flash_decode" in file.read_text()):
        time.sleep(0.05)
    workers = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    while time.monotonic() < end and any(Path(f"/proc/{worker}").exists() for worker in workers):
        time.sleep(0.05)  # they end with their parent
    assert workers and not [worker for worker in workers if Path(f"/proc/{worker}").exists()]
    left = str(journal.left())
    assert "with --device cpu, ended during endless: kernels cpu-" in left and "-flash_decode-float32-d64-q1" in left
    monkeypatch.setattr(facts, "_probe", dict)
    assert facts.gather().last_report == left

    monkeypatch.setenv("USER", "somebody")
    output, errors = real(5.0).communicate(timeout=100)
    found = data("xeflash-report-cpu.json")
    assert left in errors and found["last_report"] == left and found["complete"] and journal.left() is None
    kernels = left.partition("kernels ")[2]
    assert f"selftest: endless: died: no answer within 5 s; kernels {kernels}" in output
    assert [row["status"] for part in ("selftest", "card") for row in found[part]["cases"]] == ["ok", "died"]
    text = Path("xeflash-report-cpu.json").read_text()
    names = ("somebody", getpass.getuser(), socket.gethostname(), str(Path.home()), os.getcwd(), tempfile.gettempdir())
    assert [name for name in (*names, sys.prefix) if re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)] == []
