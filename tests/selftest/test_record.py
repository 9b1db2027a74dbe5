"""The file of a self-test at every moment."""

import json
import os

from xeflash.bench.files import cannot_write
from xeflash.selftest.record import Record

REQUEST = {"name": "a", "timed": False}


def statuses(file):
    return [case["status"] for case in json.loads(file.read_text())["cases"]]


def test_the_file_is_whole_after_each_step(tmp_path):
    file = tmp_path / "report.json"
    record = Record({"arrays": "USM"}, ["a", "b"], file)
    record.begin(REQUEST)
    assert statuses(file) == ["running", "not begun"]
    with file.open() as before:
        record.keep(REQUEST, {"status": "ok", "note": ""})
        assert json.load(before)["cases"][0]["status"] == "running"  # a reader keeps what it has opened
    assert statuses(file) == ["ok", "not begun"] and [*tmp_path.iterdir()] == [file]
    record.complete = True
    assert record.finish() and json.loads(file.read_text())["complete"]


def test_a_full_disk_stops_no_case_and_is_told_at_the_end(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    record = Record({}, ["a"], folder / "report.json")
    folder.rmdir()
    record.begin(REQUEST)
    assert not record.finish()


def test_what_is_no_file_is_kept_and_gets_the_end_alone(tmp_path):
    pipe, link, file = tmp_path / "pipe", tmp_path / "link", tmp_path / "file"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert cannot_write(pipe) == ""
    record = Record({}, ["a"], pipe)
    record.begin(REQUEST)
    assert record.finish() and pipe.is_fifo()
    assert json.loads(os.read(reader, 1 << 16))["complete"] is False
    os.close(reader)
    link.symlink_to(file)
    Record({}, ["a"], link).finish()
    assert link.is_symlink() and statuses(file) == ["not begun"]
