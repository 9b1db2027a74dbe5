"""What a run says of itself, and that a test which hangs ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cover import cover, few
from run_report import Spent

ROOT = Path(__file__).resolve().parent.parent


def test_journals_add_up(tmp_path):
    def kernel(name, device, compiled, seconds):
        return {"kernel": name, "device": device, "compiled": compiled, "seconds": seconds}

    journals = {
        "1": [
            {"test": "a"},
            kernel("cpu-one", "CPU", True, 3.0),
            kernel("cpu-one", "CPU", False, 0.0),
            kernel("bmg-one", "B580", False, 0.0),
            {"ended": "a", "took": 5.0, "simulated": 1.0, "peak": 2 << 30},
        ],
        "2": [
            {"test": "b"},
            kernel("cpu-one", "CPU", False, 0.0),
            kernel("bmg-two", "B580", True, 7.0),
            kernel("bmg-two", "", True, 1.0),  # device code, of no device
            {"ended": "b", "took": 9.0, "simulated": 0.0, "peak": 1 << 30},
        ],
    }
    for name, lines in journals.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    spent = Spent.read(tmp_path)
    assert spent.line(wall=60.0, processes=2) == (
        "1.0 minutes; kernels of the CPU: 1 compiled, 0 found; of GPUs: 1 compiled, 1 found; "
        "seconds of 2 processes: 11 compiling, 1 simulating, 108 elsewhere; the largest held 2.15 GB"
    )
    slowest = list(spent.slowest())
    assert slowest[0].split() == ["7.0", "s", "bmg-two", "b"]
    assert [line.split()[-1] for line in slowest[-2:]] == ["b", "a"]


def test_a_kernel_that_is_asked_for_is_in_the_log(tmp_path):
    log = tmp_path / "log"
    program = (
        "import numpy, xeflash; x = numpy.ones((1, 2, 2, 64), numpy.float32); xeflash.flash_attn_func(x, x, x);"
        "import os; os.environ.pop('XEFLASH_KERNEL_LOG'); xeflash.flash_attn_func(*[x[:, :1]] * 3)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env=os.environ | {"XEFLASH_KERNEL_LOG": str(log)})
    (line,) = map(json.loads, log.read_text().splitlines())
    assert line["kernel"].startswith("cpu-") and "flash_fwd-float32-d64" in line["kernel"] and line["device"]
    assert (line["seconds"] > 0) == line["compiled"]


def test_a_test_that_hangs_ends_with_its_stack(tmp_path):
    file = tmp_path / "test_it.py"
    file.write_text("import threading\n\n\ndef test_hangs():\n    threading.Event().wait()\n")
    options = ["-c", str(ROOT / "pyproject.toml"), "-o", "faulthandler_timeout=1", "-n0", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0 and "Timeout" in done.stderr and "in test_hangs" in done.stderr, done.stderr


def test_a_cover_takes_what_is_cheap_and_leaves_nothing_out():
    reached = {"a": {1, 2}, "b": {2, 3}, "c": {1, 3}, "ab": {1, 2, 3}}
    dear = {"a": 1, "b": 1, "c": 1, "ab": 100}
    chosen = cover(list(reached), reached.get, kernel=str, work=dear.get)
    assert chosen == ["a", "b"]
    assert cover(list(reached), reached.get, kernel=str) == ["ab"]


def test_what_is_not_of_the_default_set_is_marked():
    marked = {param.values: bool(param.marks) for param in few(["a", ("b", 1)], ("b", 1))}
    assert marked == {("a",): True, (("b", 1),): False}
    assert pytest.mark.wide in few(["a"])[0].marks
