"""`xeflash selftest --distributed`: as a rank, as what starts ranks, and what it refuses."""

import argparse
import contextlib
import functools
import io
import json
import sys

import pytest
import ranks
import torch
import torch.distributed as dist
from xeflash.cli import main, selftest_distributed
from xeflash.distributed import check, transport


def wrong(x, group):
    """Like a backend that loses a message on rank 2."""
    wait = transport._functional_gather(x, group)
    return lambda: wait().zero_() if group.rank() == 2 else wait()


def as_rank(group, corrupt, file):
    """Exit code and output in a program whose group is there."""
    known, whole = dict(transport._movers["all_gather"]), check.check_transport
    check.check_transport = functools.partial(whole, sizes=(1, 300))
    if corrupt:
        transport.register_transport("all_gather", "plain", wrong)
    try:
        with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(io.StringIO()):
            code = selftest_distributed._as_rank("cpu", argparse.Namespace(json=file))
    finally:
        check.check_transport, transport._movers["all_gather"] = whole, known
    return code, said.getvalue(), dist.is_initialized()


def test_all_ranks_end_alike_and_the_first_tells(tmp_path):
    file = tmp_path / "report.json"
    found = ranks.run(as_rank, False, file)
    assert [(code, there) for code, _, there in found] == [(0, True)] * 4
    assert "everything was delivered" in found[0][1] and not any(text for _, text, _ in found[1:])
    data = json.loads(file.read_text())
    assert data["ok"] and data["ranks"] == 4 and len(data["cases"]) == 7 * 2 * 4


def test_what_is_wrong_is_1(tmp_path):
    file = tmp_path / "report.json"
    found = ranks.run(as_rank, True, file)
    assert [code for code, _, _ in found] == [1] * 4
    assert "the first at rank 2, element 0" in found[0][1] and "what is in use is right" in found[0][1]
    data = json.loads(file.read_text())
    assert not data["ok"] and {case["transport"] for case in data["cases"] if case["wrong"]} == {"plain"}


@pytest.mark.parametrize(("codes", "result"), [((0, 0), 0), ((0, 1), 1), ((2, 0), 2), ((-9, 0), 1)], ids=str)
def test_processes_end_with_what_is_worst(capfd, codes, result):
    program = f"""
import os, signal, time
code = {codes}[int(os.environ["RANK"])]
assert os.environ["WORLD_SIZE"] == "2" and os.environ["LOCAL_RANK"] == os.environ["RANK"] and os.environ["MASTER_PORT"]
if code < 0:
    os.kill(os.getpid(), -code)
if {codes} == (-9, 0):
    time.sleep(600)  # a rank that waits for one that is gone
os._exit(code)
"""
    assert selftest_distributed._start(2, [sys.executable, "-c", program]) == result
    assert ("rank 0 ended with -9" in capfd.readouterr().err) == (codes[0] == -9)


def test_a_rank_that_does_not_end_is_ended(capfd, monkeypatch):
    monkeypatch.setattr(selftest_distributed, "SECONDS", 1)
    assert selftest_distributed._start(2, [sys.executable, "-c", "import time; time.sleep(600)"]) == 1
    assert "no end after 1 s of ranks 0, 1" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--nproc", "2"], "--nproc needs --distributed"),
        (["--distributed", "--nproc", "1"], "--nproc must be at least 2, got 1: one rank sends nothing"),
        (["--distributed", "--no-times"], "--no-times is not for --distributed, which times nothing"),
        (["--distributed", "--jobs", "2"], "--jobs is not for --distributed, which times nothing"),
        (["--distributed", "--device", "sim:bmg"], "--distributed needs --device auto, cpu or xpu, got sim:bmg"),
        (["--distributed", "--json", "/none/report.json"], "--json must be a file that can be written"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(capsys, words, said):
    assert main(["selftest", *words]) == 2
    assert capsys.readouterr().err.startswith(f"xeflash selftest: {said}")


def test_a_rank_of_torchrun_takes_no_number(capsys, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "0")
    assert main(["selftest", "--distributed", "--nproc", "2"]) == 2
    assert "--nproc is not for a process of torchrun" in capsys.readouterr().err


def test_xpu_needs_xccl(capsys):
    if torch.xpu.is_available() and dist.is_xccl_available():
        pytest.skip("it is there")
    assert main(["selftest", "--distributed", "--device", "xpu"]) == 2
    assert "--distributed needs torch with XCCL for xpu" in capsys.readouterr().err


@pytest.mark.wide
def test_it_starts_ranks_itself(capfd):
    assert main(["selftest", "--distributed", "--device", "cpu", "--nproc", "3"]) == 0
    output = capfd.readouterr()
    assert output.out.startswith("3 ranks, gloo, cpu\n") and output.out.endswith("everything was delivered\n")
    assert output.err.count("checking") == 7


def test_help_says_why(capsys):
    with pytest.raises(SystemExit):
        main(["selftest", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "XCCL is known to corrupt data without an error" in text
