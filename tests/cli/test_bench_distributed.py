"""`xeflash bench distributed`: its options, and ranks that it starts, that fail, or are interrupted."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from xeflash.bench import formats
from xeflash.bench.cases import product
from xeflash.bench.distributed import rows, run
from xeflash.bench.distributed.rows import LAYOUT, ONE, DistributedCase, DistributedRow
from xeflash.bench.plot import PlotError
from xeflash.bench.rows import Result
from xeflash.cli import main

LAUNCHED = Path(__file__).with_name("launched.py")
CASE = DistributedCase("bf16", 1, 8, 2, 128, 512, True, "zigzag")


def row(way, **fields):
    return DistributedRow(**vars(CASE), ranks=1 if way == ONE else 2, way=way, **fields)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seq", "1022"], "bench: --seq must be a multiple of 4 for 2 ranks with --shards zigzag, got 1022"),
        (["--heads", "8", "--kv-heads", "3"], "bench: --heads must be a multiple of --kv-heads, got 8 and 3"),
    ],
)
def test_what_has_no_meaning_is_refused(words, message, capsys, small_work):
    assert main(["bench", "distributed", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_number_of_ranks_beside_torchruns_is_refused(monkeypatch, capsys, small_work):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert main(["bench", "distributed", "--nproc", "2"]) == 2
    assert (
        "rank 1 failed: ValueError: bench: --nproc must be left out, or 4 as torchrun has it" in capsys.readouterr().err
    )


def test_cases_are_a_product_and_lengths_are_dealt():
    choices = {"dtype": ("fp32", "bf16"), "kv_heads": (2, 4), "seq": (128, 256), "causal": False}
    cases = product(DistributedCase, batch=(1,), heads=4, head_dim=64, shards="ranges", **choices)
    assert len(cases) == 8 and not cases[0].causal
    rows.check_cases([CASE], 128)
    with pytest.raises(ValueError, match="--seq must be a multiple of 96 for 48 ranks"):
        rows.check_cases([CASE], 48)
    assert CASE.shapes(2) == ((1, 256, 8, 128), (1, 256, 2, 128))


def test_rows_show_what_differs_from_the_formula_and_are_read_back():
    right = row(
        "ring", forward_bytes=1000, forward_bytes_formula=1000, backward_bytes=3000, backward_bytes_formula=2000
    )
    results = [Result(right, {"ring": (2.0, 3.0)})]
    text = formats.to_md({}, results, LAYOUT)
    assert "| 1.00 kB | 3.00 kB (2.00 kB) |" in text
    for name, read in formats.READERS.items():
        assert read(formats.WRITERS[name]({}, results, LAYOUT), LAYOUT)[0].row == right


def test_the_picture_needs_a_result():
    pytest.importorskip("matplotlib")
    some = {"median_ms": 2.5, "peak_bytes": 100, "forward_bytes": 10, "backward_bytes": 20}
    figure = run.figure([Result(row(way, **some), {way: (2.0, 3.0)}) for way in (ONE, "ring")], "title")
    assert len(figure.axes) == 3
    with pytest.raises(PlotError, match="no successful case"):
        run.figure([], "title")


def environment():
    return {**os.environ, "OMP_NUM_THREADS": "1", "DPCPP_CPU_NUM_CUS": "1"}


def test_ranks_are_started_checked_and_measured(tmp_path):
    file = tmp_path / "rows.json"
    words = ["--seq", "64", "--heads", "3", "--kv-heads", "3", "--head-dim", "64", "--rounds", "2", "--device", "cpu"]
    command = [sys.executable, "-m", "xeflash", "bench", "distributed", *words, "--output", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment())
    assert done.returncode == 0, done.stderr
    found = {each["way"]: each for each in json.loads(file.read_text())["rows"]}
    assert list(found) == [ONE, "ring", "all_gather", "all_to_all"]
    assert found["all_to_all"]["status"] == "skipped" and "got 3" in found["all_to_all"]["note"]
    for way in ("ring", "all_gather"):
        each = found[way]
        assert each["status"] == "ok" and each["max_error"] <= each["allowed_error"]
        assert (each["forward_bytes"], each["backward_bytes"]) == (24576, 73728)  # 2 x 32 x 3 x 64 elements
        assert each["messages"] == each["messages_formula"] == 3
        assert each["ratio"] > 0 and each["waited_ms"] >= 0 and each["peak_bytes"] > 0


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("raises", "bench: rank 1 failed: ValueError: something is broken here"),
        ("is_killed", "bench: rank 1 failed: Signal 9 (SIGKILL)"),
    ],
)
def test_a_rank_that_fails_ends_all_and_is_named(what, message, tmp_path):
    command = [sys.executable, str(LAUNCHED), what, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 2 and message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("send", "sent"), [(os.killpg, signal.SIGINT), (os.kill, signal.SIGTERM)])
def test_an_interrupt_ends_all_ranks(tmp_path, send, sent):
    command = [sys.executable, str(LAUNCHED), "waits", str(tmp_path)]
    process = subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 200
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < end:
        time.sleep(0.1)
    time.sleep(0.2)  # until both numbers are written
    ranks = [int(path.read_text()) for path in tmp_path.iterdir()]
    send(process.pid, sent)
    assert process.wait(60) == 130
    assert len(ranks) == 2 and not any(Path(f"/proc/{rank}").exists() for rank in ranks)
