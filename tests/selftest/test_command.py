"""`xeflash selftest`, and its workers."""

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import xeflash
from xeflash.cli import build_parser, main
from xeflash.selftest import cases, pool, worker
from xeflash.selftest.cases import all_cases, large_cases

NAME = "forward bf16 d64 2/2 127x127"


@pytest.mark.parametrize("every", [8, pytest.param(1, marks=pytest.mark.long)])
def test_this_machine_passes(capsys, tmp_path, monkeypatch, every):
    small, large = (dict(list(found.items())[::every]) for found in (all_cases(), large_cases(on_gpu=False)))
    monkeypatch.setattr(cases, "all_cases", lambda: small)
    monkeypatch.setattr(cases, "large_cases", lambda on_gpu: large)
    names = [*small, *large]
    file = tmp_path / "report.json"
    assert main(["selftest", "--device", "cpu", "--json", str(file), "--jobs", "2"]) == 0
    output = capsys.readouterr().out
    data = json.loads(file.read_text())
    assert [case["name"] for case in data["cases"]] == names
    assert data["ok"] and data["complete"] and all(case["status"] == "ok" and case["ms"] > 0 for case in data["cases"])
    assert data["device"]["arch"].startswith("cpu-") and data["device"]["driver"] in output
    assert data["software"]["torch"] and "libsycl.so.9" in data["software"]["libsycl"][0]
    assert data["limits"] is None  # not known for CPUs
    assert all(name in output for name in names)
    verdict = f"{len(names)} of {len(names)} cases are right on {data['device']['name']} (cpu), "
    assert output.splitlines()[-1].startswith(verdict)
    assert "\nnew: " not in output or ": new " in output


def test_a_report_that_cannot_be_written_is_refused_before_all_cases(capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(pool, "Pool", lambda *_: pytest.fail("a process was started"))
    assert main(["selftest", "--device", "cpu", "--json", str(tmp_path / "none" / "report.json")]) == 2
    assert "--json must be a file that can be written" in capsys.readouterr().err


def test_a_run_that_is_refused_leaves_no_report(monkeypatch, tmp_path):
    def refuse(*_):
        raise pool.Refused("no device")

    monkeypatch.setattr(pool, "Pool", refuse)
    assert main(["selftest", "--device", "cpu", "--json", str(tmp_path / "report.json")]) == 2
    assert not any(tmp_path.iterdir())


def answers(*requests, device="cpu"):
    said = io.StringIO()
    worker.serve(device, io.StringIO("".join(json.dumps(request) + "\n" for request in requests)), said)
    return [json.loads(line) for line in said.getvalue().splitlines()]


def test_a_worker_answers_with_what_is_wrong(monkeypatch):
    right = xeflash.flash_attn_func

    def wrong(*args, **kwargs):
        out, lse, _ = right(*args, **kwargs)
        out[1, 5, 0, 3] += 1
        return out, lse, None

    monkeypatch.setattr(xeflash, "flash_attn_func", wrong)
    hello, answer = answers({"name": NAME, "timed": True})
    assert hello["on_gpu"] is False and hello["arch"].startswith("cpu-")
    assert answer["status"] == "wrong" and "ms" not in answer
    assert answer["index"] == [0, 0, 5, 3] and answer["note"].startswith("sequence 1 out at [0, 0, 5, 3]: got ")


def test_a_worker_survives_a_case_that_raises(monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("device lost")

    monkeypatch.setattr(xeflash, "flash_attn_func", broken)
    _, answer, software = answers({"name": NAME, "timed": False}, {"software": True})
    assert answer["status"] == "error" and answer["note"] == "RuntimeError: device lost"
    assert software["intel-sycl-rt"]


@pytest.mark.xpu
def test_a_worker_takes_tensors_on_xpu_where_torch_has_it(xpu):
    hello, answer = answers({"name": NAME, "timed": True}, device="xpu")
    assert hello["arrays"] == "torch on xpu" and hello["arch"] == xpu and hello["driver"] and hello["ip_version"]
    assert answer["status"] == "ok" and answer["ms"] > 0


@pytest.mark.gpu
def test_a_worker_takes_usm_on_a_gpu_that_torch_does_not_have(gpu, monkeypatch):
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    hello, answer = answers({"name": NAME, "timed": False}, device="auto")
    assert hello["arrays"] == "USM" and hello["on_gpu"] and hello["arch"] == gpu
    assert answer["status"] == "ok"


# Answers with ok, or as `answers` says for some names; "hang" does not answer.
WORKER = """
import json, sys, time
print(json.dumps({"on_gpu": True, "name": "a GPU", "arrays": "USM", "simulated": True}), flush=True)
answers = json.loads(sys.argv[1])
for line in sys.stdin:
    name = json.loads(line).get("name")
    answer = answers.get(name, answers.get("*", {"status": "ok", "note": ""}))
    if answer == "hang":
        time.sleep(100)
    print(json.dumps(answer), flush=True)
"""
WRONG = {"status": "wrong", "note": "out at [1, 2]: got 3.0, want 4.0"}


@pytest.fixture
def worker_says(monkeypatch):
    def says(answers):
        words = [sys.executable, "-c", WORKER, json.dumps(answers)]
        monkeypatch.setattr(pool, "command", lambda device: words)

    return says


def test_what_is_wrong_is_told_and_ends_with_1(worker_says, capsys):
    worker_says({NAME: WRONG})
    assert main(["selftest"]) == 1
    output = capsys.readouterr()
    assert f"{NAME}: wrong: out at [1, 2]: got 3.0, want 4.0" in output.out and NAME in output.err
    assert f"{len(all_cases()) - 1} of {len(all_cases())} cases are right on a GPU (gpu), " in output.out
    assert "new: " not in output.out
    assert "times mean nothing" in output.out and "ms" not in output.out.splitlines()[0].split()


def test_a_device_that_runs_nothing_is_told_once_and_ends_with_2(worker_says, capsys, tmp_path):
    worker_says({"*": {"status": "error", "note": "ValueError: it is broken"}})
    file = tmp_path / "report.json"
    assert main(["selftest", "--json", str(file)]) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.splitlines() == [
        f"xeflash selftest: {len(all_cases())} cases on a GPU",
        "xeflash selftest: no kernel runs on a GPU: ValueError: it is broken; see: xeflash doctor",
    ]
    assert not json.loads(file.read_text())["complete"]


@pytest.mark.parametrize("answers", [{"*": WRONG}, {next(iter(all_cases())): {"status": "error", "note": "lost"}}])
def test_wrong_results_and_one_kernel_that_fails_are_no_reason_to_give_up(worker_says, answers):
    worker_says(answers)
    assert main(["selftest"]) == 1


PROGRAM = """
import sys
from xeflash.cli import main
from xeflash.selftest import pool
pool.command = lambda device: [sys.executable, "-c", sys.argv[2], sys.argv[3]]
sys.exit(main(["selftest", "--jobs", "1", "--json", sys.argv[1]]))
"""


def until(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    assert condition()


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_file_names_the_case_that_hangs(tmp_path, sent):
    """It does so while the case runs, as nobody will write it if the machine freezes."""
    file = tmp_path / "report.json"
    words = [sys.executable, "-c", PROGRAM, str(file), WORKER, json.dumps({NAME: "hang"})]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def states():
        return [(case["name"], case["status"]) for case in json.loads(file.read_text())["cases"]]

    until(lambda: file.exists() and (NAME, "running") in states())
    process.send_signal(sent)
    time.sleep(0.01)
    process.send_signal(sent)  # as `timeout` does
    output, errors = process.communicate(timeout=20)
    done = [*all_cases()].index(NAME)
    assert [state for _, state in states()] == ["ok"] * done + ["running"] + ["not begun"] * (len(states()) - done - 1)
    assert json.loads(file.read_text())["complete"] is False
    if sent != signal.SIGKILL:
        assert process.returncode == 130 and f"{file} has what is known" in errors and "Traceback" not in errors
        assert f"{NAME}: running: it was being checked" in output and f"{len(states()) - done - 1} were not" in output
        assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_device_that_is_not_there_ends_with_2(monkeypatch, capsys):
    monkeypatch.delenv("XEFLASH_SIM", raising=False)
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "*:cpu")
    assert main(["selftest", "--device", "xpu"]) == 2
    assert "device xpu needs a GPU" in capsys.readouterr().err


def test_a_simulated_gpu_without_its_compiler_is_refused_before_all_kernels(tmp_path):
    environ = {**os.environ, "XEFLASH_OCLOC": str(tmp_path / "none"), "XEFLASH_CACHE_DIR": str(tmp_path)}
    tmp_path.chmod(0o700)
    words = [sys.executable, "-m", "xeflash", "selftest", "--device", "sim:bmg"]
    done = subprocess.run(words, capture_output=True, text=True, env=environ)
    assert done.returncode == 2 and done.stdout == "" and len(done.stderr.splitlines()) == 1
    assert f"needs ocloc, Intel's offline compiler, and XEFLASH_OCLOC={tmp_path / 'none'} is none" in done.stderr
    assert done.stderr.endswith("that works; try: unset XEFLASH_OCLOC\n")
    assert not [*tmp_path.glob("*bmg*")]


def test_unknown_devices_are_refused(capsys):
    with pytest.raises(SystemExit):
        build_parser().parse_args(["selftest", "--device", "sim:b580"])
    assert "sim:bmg" in capsys.readouterr().err


def test_an_interrupt_ends_the_workers():
    command = [sys.executable, "-m", "xeflash", "selftest", "--device", "cpu", "--jobs", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    children = []
    while len(children) < 2 and time.monotonic() < deadline:
        tasks = Path(f"/proc/{process.pid}/task").iterdir()
        children = [pid for task in tasks for pid in (task / "children").read_text().split()]
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130 and "Traceback" not in errors and len(children) == 2
    assert not [pid for pid in children if os.path.exists(f"/proc/{pid}")]
