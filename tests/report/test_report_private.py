"""No names and paths in a report."""

import getpass
import json
import socket
from pathlib import Path

import pytest
from xeflash.cli.report import Report
from xeflash.report.private import without_names


@pytest.fixture(autouse=True)
def somebody(monkeypatch):
    monkeypatch.setenv("HOME", "/home/some body")
    monkeypatch.setenv("USER", "somebody")
    monkeypatch.setattr(socket, "gethostname", lambda: "their-desk.example.org")


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("/home/some body/.cache/xeflash/x-1.log", ".../x-1.log"),
        ("no file /home/some body", "no file /..."),
        ("a:/usr/lib/a.so:/home/other/b.so", "a:.../a.so:.../b.so"),
        ('File "/opt/venv/lib/x.py", line 3, in <module>', 'File ".../x.py", line 3, in <module>'),
        ("somebody on their-desk.example.org, or their-desk", "(name) on (name), or (name)"),
        ("406 GB/s of 16/8 heads, and/or q / k; //", "406 GB/s of 16/8 heads, and/or q / k; //"),
        (
            "see https://github.com/intel/compute-runtime/issues/962",
            "see https://github.com/intel/compute-runtime/issues/962",
        ),
        ("somebodyelse", "somebodyelse"),
    ],
)
def test_paths_and_names_are_cut(text, cleaned):
    assert without_names(text) == cleaned
    assert without_names({text: [text, (text,), 1, None]}) == {cleaned: [cleaned, [cleaned], 1, None]}


def test_this_machine_is_not_named():
    for path in (Path.cwd(), Path(__file__)):
        assert str(path) not in without_names(f"at {path}, {path}/x")
    assert getpass.getuser() not in without_names(f"{getpass.getuser()} did")


def test_a_user_may_be_called_as_a_word_of_the_report(tmp_path, monkeypatch):
    monkeypatch.setenv("USER", "status")
    report, row = Report(tmp_path / "report.json"), {"status": "ok", "note": "status: /opt/x.so"}
    report.keep(card={"cases": [row]}, device={"name": "status"})
    assert report.parts["card"]["cases"] == [row]  # which is judged
    found = json.loads(report.file.read_text())
    assert found["card"]["cases"] == [{"status": "ok", "note": "(name): .../x.so"}]
    assert found["device"] == {"name": "status"}
