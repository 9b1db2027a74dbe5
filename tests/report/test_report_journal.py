"""The journal of a report, after each way to end."""

import errno
import json
import os
import subprocess
import sys

import pytest
from xeflash.cli import checks
from xeflash.cli.facts import Facts
from xeflash.jit.log import log_kernel
from xeflash.report import journal


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.setenv("XEFLASH_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


# Two cases begin, one ends; then it is killed.
KILLED = """
import os, signal
from xeflash.report import journal
with journal.kept("xpu") as (kept, _):
    kept.begin("a", ["flash_fwd-d64"])
    other = journal.Journal(kept.path)  # as another process has it
    other.begin("b")
    other.begin("b", ["flash_decode-d128", "combine"])
    kept.end("a")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_report_that_ends_leaves_nothing_and_one_at_a_time_runs(folder):
    assert journal.left() is None and not folder.exists()  # doctor makes no folder
    with journal.kept("cpu") as (kept, last):
        kept.begin("a", ["kernel"])
        assert last is None and kept.kernels("a") == ["kernel"] and kept.kernels("b") == []
        assert journal.left() is None  # it runs
        with pytest.raises(BlockingIOError), journal.kept("cpu"):
            pass
    assert journal.left() is None and not [*folder.glob("*.journal")]


def test_what_was_under_way_is_named_once_by_doctor_until_the_next_report_tells_it(folder):
    subprocess.run([sys.executable, "-c", KILLED])
    left = journal.left()
    said = "with --device xpu, ended during b: kernels flash_decode-d128, combine"
    assert left and str(left).startswith("the last report, of 20") and str(left).endswith(said)
    (check,) = checks.check_last_report(Facts(last_report=str(left)))
    assert (check.status, check.detail) == ("warn", str(left))
    with journal.kept("cpu") as (_, last):
        assert last == left
    assert journal.left() is None


def test_kernels_of_the_tuner_are_those_that_it_has_loaded_last(monkeypatch):
    with journal.kept("cpu") as (kept, _):
        monkeypatch.setenv("XEFLASH_KERNEL_LOG", kept.path)
        log_kernel("before", "a GPU", False, 0.0)
        kept.begin(journal.TUNER)
        for name in "abcd":
            log_kernel(name, "a GPU", False, 0.0)
        log_kernel("compiled", "a GPU", True, 1.0)
        assert kept.kernels(journal.TUNER) == ["b", "c", "d"]
        kept.end(journal.TUNER)
        log_kernel("after", "a GPU", False, 0.0)
        assert kept.kernels(journal.TUNER) == []


@pytest.mark.parametrize("torn", ['{"case": "b", "ker', "12", "[1]", "\x00" * 50, ""])
def test_a_line_that_is_torn_hides_no_other(folder, torn):
    subprocess.run([sys.executable, "-c", KILLED])
    with (folder / "report.journal").open("a") as file:
        file.write(torn)
    assert journal.left().cases == {"b": ["flash_decode-d128", "combine"]}


def test_a_journal_that_others_could_have_written_is_not_read(folder):
    subprocess.run([sys.executable, "-c", KILLED])
    (folder / "report.journal").chmod(0o666)
    assert journal.left() is None


def test_what_is_noted_is_on_the_disk(folder, monkeypatch):
    flushed = []
    monkeypatch.setattr(os, "fsync", flushed.append)
    with journal.kept("cpu") as (kept, _):
        before = len(flushed)
        kept.begin("a")
        assert len(flushed) == before + 1
        lines = (folder / "report.journal").read_text().splitlines()
        assert json.loads(lines[-1]) == {"case": "a", "kernels": []}


def test_a_full_disk_stops_no_case(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with journal.kept("cpu") as (kept, _), monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        kept.begin("a", ["kernel"])
        kept.end("a")


def test_a_folder_that_cannot_have_it_is_told(folder):
    folder.write_text("no folder")
    with pytest.raises(OSError), journal.kept("cpu"):
        pass
    assert journal.left() is None
