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
    assert data["ok"] and all(case["status"] == "ok" and case["ms"] > 0 for case in data["cases"])
    assert data["device"]["arch"].startswith("cpu-") and data["device"]["driver"] in output
    assert data["software"]["torch"] and "libsycl.so.9" in data["software"]["libsycl"][0]
    assert data["limits"] is None  # not known for CPUs
    assert f"{len(names)} of {len(names)} cases are right" in output and all(name in output for name in names)


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


def test_what_is_wrong_is_told_and_ends_with_1(monkeypatch, capsys):
    program = """
import json, sys
print(json.dumps({"on_gpu": True, "name": "a GPU", "arrays": "USM", "simulated": True}), flush=True)
for line in sys.stdin:
    wrong = json.loads(line).get("name") == "%s"
    print(json.dumps({"status": "wrong" if wrong else "ok", "note": "out at [1, 2]: got 3.0, want 4.0"}), flush=True)
"""
    monkeypatch.setattr(pool, "command", lambda device: [sys.executable, "-c", program % NAME])
    assert main(["selftest"]) == 1
    output = capsys.readouterr()
    assert f"{NAME}: wrong: out at [1, 2]: got 3.0, want 4.0" in output.out
    assert f"{len(all_cases()) - 1} of {len(all_cases())} cases are right" in output.out
    assert "times mean nothing" in output.out and "ms" not in output.out.splitlines()[0].split()


def test_a_device_that_is_not_there_ends_with_2(monkeypatch, capsys):
    monkeypatch.delenv("XEFLASH_SIM", raising=False)
    monkeypatch.setenv("ONEAPI_DEVICE_SELECTOR", "*:cpu")
    assert main(["selftest", "--device", "xpu"]) == 2
    assert "--device xpu needs a GPU" in capsys.readouterr().err


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
