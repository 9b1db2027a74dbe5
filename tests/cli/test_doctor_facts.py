"""What the doctor looks at: files, variables, and the child process that may crash."""

import json
import sys
from pathlib import Path

import pytest
from xeflash.cli import checks, facts, main, probe
from xeflash.cli.facts import Cache

MAPS = """\
7f00-7f01 r-xp 00000000 08:01 1 /env/lib/libsycl.so.9.0.0
7f01-7f02 r--p 00000000 08:01 1 /env/lib/libsycl.so.9.0.0
7f02-7f03 r-xp 00000000 08:01 2 /opt/intel/lib/libsycl.so.8
7f03-7f04 r-xp 00000000 08:01 3 /env/lib/libsycl-jit.so.23.1
"""


def test_mapped_libraries_are_found():
    assert probe.mapped_libsycl(MAPS) == [
        "/env/lib/libsycl.so.9.0.0",
        "/opt/intel/lib/libsycl.so.8",
    ]
    assert [checks.soname_major(path) for path in probe.mapped_libsycl(MAPS)] == [9, 8]


def test_foreign_libsycl_is_found_on_the_library_path(tmp_path):
    ours, other = tmp_path / "env" / "lib", tmp_path / "oneapi"
    for folder in (ours, other):
        folder.mkdir(parents=True)
        (folder / "libsycl.so.9").touch()
    path = f"{ours}:{other}:/does/not/exist"
    found = facts.foreign_libsycl({"LD_LIBRARY_PATH": path}, str(tmp_path / "env"))
    assert found == {"LD_LIBRARY_PATH": (str(other / "libsycl.so.9"),)}
    found = facts.foreign_libsycl({"LD_PRELOAD": str(other / "libsycl.so.9")}, str(tmp_path / "env"))
    assert list(found) == ["LD_PRELOAD"]
    assert facts.foreign_libsycl({}, str(tmp_path)) == {}


def test_cache_is_counted(tmp_path):
    folder = tmp_path / "cache"
    assert facts.look_at_cache(folder) == Cache(str(folder), 0, 0, True)
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        (folder / name / "kernel.bin").write_bytes(b"1234")
        (folder / name / "meta.json").write_bytes(b"{}")
    (folder / ".unfinished").mkdir()
    assert facts.look_at_cache(folder) == Cache(str(folder), 2, 12, True)


def test_a_cache_that_cannot_be_made_is_not_writable(tmp_path):
    file = tmp_path / "file"
    file.touch()
    for folder in (Path("/proc/x/y"), file / "cache"):
        assert not facts.look_at_cache(folder).writable
    assert [*tmp_path.iterdir()] == [file]


def test_a_cache_that_others_may_write_is_refused(tmp_path):
    tmp_path.chmod(0o777)
    found = facts.look_at_cache(tmp_path)
    assert "writable by its owner only" in found.refused
    (check,) = checks.check_cache(facts.Facts(cache=found))
    assert check.status == "warn" and check.detail == f"not used: {found.refused}"
    assert "XEFLASH_CACHE_DIR" in check.fix


def test_cache_folder_follows_the_variables(monkeypatch, tmp_path):
    assert str(facts.cache_folder({"XEFLASH_CACHE_DIR": "/a"})) == "/a"
    assert str(facts.cache_folder({"XDG_CACHE_HOME": "/b"})) == "/b/xeflash"
    assert str(facts.cache_folder({"HOME": "/c"})) == "/c/.cache/xeflash"
    cache = pytest.importorskip("xeflash.jit.cache")
    for name, value in (
        ("HOME", tmp_path),
        ("XDG_CACHE_HOME", tmp_path / "x"),
        ("XEFLASH_CACHE_DIR", tmp_path / "y"),
    ):
        monkeypatch.setenv(name, str(value))
        assert facts.cache_folder(facts.os.environ) == cache.cache_folder()


def test_the_pin_of_a_requirement_is_read():
    requirements = ["sympy>=1.13", "intel-sycl-rt-extra==1", 'intel-sycl-rt==2025.3.2; platform_system == "Linux"']
    assert facts.pinned(requirements, "intel-sycl-rt") == "2025.3.2"
    assert facts.pinned(["intel-sycl-rt (==2026.0.0)"], "intel-sycl-rt") == "2026.0.0"
    assert facts.pinned(["intel-sycl-rt>=2026.0,<2027"], "intel-sycl-rt") is None


POLICY = """\
g++:
  Installed: 4:12.2.0-3
  Candidate: 4:12.2.0-3
  Version table:
 *** 4:12.2.0-3 500
libze-intel-gpu1:
  Installed: (none)
  Candidate: (none)
  Version table:
libze1:
  Installed: (none)
  Candidate: 1.8.12-1
"""


def test_only_packages_that_the_system_has_are_suggested():
    assert facts.installable(POLICY) == ("g++", "libze1")
    assert facts.installable("") == ()


def test_the_ocloc_that_was_fetched_is_found(tmp_path):
    fetched = tmp_path / "ocloc" / "ocloc"
    fetched.parent.mkdir()
    fetched.write_text("#!/bin/sh\n")
    fetched.chmod(0o755)
    assert facts._find_ocloc({"XEFLASH_CACHE_DIR": str(tmp_path)}) == str(fetched)
    assert facts._find_ocloc({"XEFLASH_CACHE_DIR": str(tmp_path), "XEFLASH_OCLOC": "/nowhere/ocloc"}) is None
    fetched.chmod(0o777)  # anybody may have written it
    assert facts._find_ocloc({"XEFLASH_CACHE_DIR": str(tmp_path)}) != str(fetched)


@pytest.mark.gpu
def test_attention_is_tried_on_the_gpu(gpu):
    facts_of_probe = probe.probe(with_torch=True)
    tried = "torch xpu" if facts_of_probe["torch"]["xpu"] else "gpu"
    assert facts_of_probe["attention"] == {"torch cpu": "ok", tried: "ok"}


def child(tmp_path, monkeypatch, program):
    """Let the doctor's child run `program` in place of the probe."""
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\n{program}\n")
    script.chmod(0o755)
    monkeypatch.setattr(facts.sys, "executable", str(script))
    return facts.run_probe(with_torch=False)


@pytest.mark.parametrize(
    ("program", "crash"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "signal 11: no message"),
        ("import sys; sys.exit('broken')", "exit 1: broken"),
        ("print('no json')", "exit 0: no message"),
    ],
)
def test_child_that_dies_is_reported(tmp_path, monkeypatch, program, crash):
    assert child(tmp_path, monkeypatch, program) == {"crash": crash}


def test_child_that_dies_at_its_end_is_noticed(tmp_path, monkeypatch):
    program = 'import os; print("{}", flush=True); os.abort()'
    assert child(tmp_path, monkeypatch, program) == {"exit": -6}


def test_child_that_hangs_is_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(facts, "_PROBE_SECONDS", 0.2)
    assert "no answer" in child(tmp_path, monkeypatch, "import time; time.sleep(60)")["crash"]


def test_torch_that_crashes_is_left_out(monkeypatch):
    answers = {True: {"crash": "signal 11"}, False: {"core": {"devices": []}}}
    monkeypatch.setattr(facts, "run_probe", lambda with_torch: answers[with_torch])
    monkeypatch.setattr(facts, "package_version", lambda name: "1")
    assert facts._probe() == {"core": {"devices": []}, "crash_with_torch": "signal 11"}


def test_this_machine_can_run(capsys):
    assert main(["doctor", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["ok"]
    assert not [check for check in data["checks"] if check["status"] == "error"]
