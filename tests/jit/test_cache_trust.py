"""The cache folder's contents are run: what somebody else may have written is not, and is left as it is."""

import dataclasses
import hashlib
import importlib
import json
import os
import pwd
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from xeflash.jit import cache, kernel
from xeflash.jit.cache import Built
from xeflash.runtime import cache_folder, warn

provide = importlib.import_module("xeflash.jit.provide")  # the package has the function under this name

OTHER = 4321  # a user who is neither us nor root
META = {"source": "that of the kernel", "options": ["-O2"]}


class Compiler:
    """Counts its runs."""

    def __init__(self):
        self.runs = 0

    def __call__(self):
        self.runs += 1
        return Built(b"ours", "a log\n")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XEFLASH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(warn, "_said", set())
    return tmp_path / "cache"


@pytest.fixture
def umask():
    """A function that sets the umask for the test."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def plant(folder, binary=b"theirs", meta=META):
    """A whole entry that somebody wrote."""
    (folder / "key").mkdir(parents=True, exist_ok=True)
    (folder / "key" / "kernel.bin").write_bytes(binary)
    digest = hashlib.sha256(binary).hexdigest()
    (folder / "key" / "meta.json").write_text(json.dumps({**meta, "sha256": digest}))


def get(meta=META):
    compiler = Compiler()
    binary = cache.get_or_build("key", "source", meta, compiler)
    assert compiler.runs == (binary == b"ours")
    return binary


def chown(path, owner):
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    os.chown(path, owner, -1, follow_symlinks=False)


def states(folder):
    return {path: (path.lstat().st_mode, path.lstat().st_mtime_ns) for path in [folder, *folder.rglob("*")]}


def warned_once(found, *texts):
    (warning,) = found
    assert all(text in str(warning.message) for text in texts), warning.message
    return True


# ---- folders --------------------------------------------------------------------------------------


def test_what_is_ours_is_used(folder):
    plant(folder)
    assert get() == b"theirs"


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775, 0o757, 0o720])
def test_a_folder_that_others_may_write_is_not_used(folder, mode):
    plant(folder)
    folder.chmod(mode)
    before = states(folder)
    with pytest.warns(RuntimeWarning) as found:
        assert get() == get() == b"ours"
    assert warned_once(found, str(folder), f"{mode:04o}", "writable by its owner only", "XEFLASH_CACHE_DIR")
    assert cache.read("key", META) is None
    assert states(folder) == before


def test_a_folder_of_another_user_is_not_used(folder, monkeypatch):
    plant(folder)
    before = states(folder)
    owner = os.geteuid()
    if owner == 0:
        os.chown(folder, OTHER, -1)
        owner = OTHER
    else:
        monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    with pytest.warns(RuntimeWarning) as found:
        assert get() == get() == b"ours"
    assert warned_once(found, str(folder), f"it belongs to uid {owner}", "XEFLASH_CACHE_DIR")
    assert cache.read("key", META) is None
    assert states(folder) == before


def test_a_folder_that_root_filled_is_read_by_all(folder, monkeypatch):
    plant(folder)
    chown(folder, 0)
    monkeypatch.setattr(os, "geteuid", lambda: OTHER)
    assert get() == b"theirs"


def test_a_folder_of_a_parent_that_everybody_may_write_has_to_be_sticky(folder, monkeypatch):
    """Where it is not, others may move into its place what they got its owner to unpack elsewhere."""
    plant(folder)
    folder.parent.chmod(0o777)
    with pytest.warns(RuntimeWarning) as found:
        assert get() == b"ours"
    assert warned_once(found, f"{folder.parent} must be sticky", "0777")
    folder.parent.chmod(0o1777)
    assert get() == b"theirs"


def test_links_to_the_folder_are_followed_if_they_are_ours(folder, tmp_path, monkeypatch):
    plant(tmp_path / "elsewhere" / "cache")
    (tmp_path / "way").symlink_to("elsewhere")
    folder.symlink_to("way/cache")
    folder.parent.chmod(0o1777)
    assert get() == b"theirs"
    chown(tmp_path / "way", OTHER)
    with pytest.warns(RuntimeWarning) as found:
        assert get() == b"ours"
    assert warned_once(found, f"{tmp_path / 'way'} must not be somebody else's link", str(OTHER))
    folder.parent.chmod(0o755)  # its owner has put the link there
    assert get() == b"theirs"


def test_links_in_a_circle_end(folder):
    folder.symlink_to(folder.name)
    with pytest.warns(RuntimeWarning, match="cannot be used"):
        assert get() == b"ours"


@pytest.mark.parametrize("value", [0o000, 0o022, 0o077, 0o777])
def test_what_is_written_is_ours_alone_whatever_the_umask(folder, umask, value):
    umask(value & 0o077)  # parents have to stay usable
    (folder.parent / "made").mkdir(mode=0o700)
    with cache_folder.open_folder(folder, make=True):
        umask(value)
    assert get() == b"ours"
    cache.keep_log("log", "text")
    modes = {path.relative_to(folder): stat.S_IMODE(path.stat().st_mode) for path in folder.rglob("*")}
    assert {modes.pop(Path("key")), stat.S_IMODE(folder.stat().st_mode)} == {0o700}
    assert set(modes.values()) == {0o600} and len(modes) == 4 + 2


# ---- entries --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["key", "key/kernel.bin", "key/meta.json"])
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o602 | 0o100])
def test_an_entry_that_others_may_write_is_built_again(folder, name, mode):
    plant(folder)
    (folder / name).chmod(mode)
    with pytest.warns(RuntimeWarning) as found:
        assert get() == b"ours"
    assert warned_once(found, str(folder / name), f"{mode:04o}", "compiled again")
    assert cache.read("key", META) == b"ours"


@pytest.mark.parametrize("name", ["key", "key/kernel.bin", "key/meta.json"])
def test_an_entry_of_another_user_is_built_again(folder, name):
    plant(folder)
    chown(folder / name, OTHER)
    with pytest.warns(RuntimeWarning) as found:
        assert get() == b"ours"
    assert warned_once(found, str(folder / name), f"uid {OTHER}")
    assert cache.read("key", META) == b"ours"


def test_another_kernels_entry_under_the_name_is_built_again(folder):
    plant(folder, meta={**META, "source": "that of another kernel"})
    assert cache.read("key", META) is None
    assert get() == b"ours"
    assert cache.read("key", META) == b"ours"


def test_an_entry_repeats_all_that_its_code_depends_on(folder, monkeypatch):
    """Moved under another kernel's name, it is not that kernel's."""
    desc = kernel.Desc("flash_fwd", "cpu-avx512", "float32", 64, 64, 64, device="a cpu", driver="1.0")
    source = kernel.render(desc)
    other = dataclasses.replace(desc, hooks=("SoftCap",))
    requests = [
        (source, desc),
        (kernel.render(other), other),
        *((source, dataclasses.replace(desc, **change)) for change in ({"device": "b"}, {"driver": "2"})),
        (dataclasses.replace(source, options=(*source.options, "-O0")), desc),
        (dataclasses.replace(source, text=source.text + "\n"), desc),
    ]
    for name in ("_installed", "digest_of_headers", "_cpu", "standard_libraries"):
        requests.append((source, desc, name))
    provide.kept_native(source, desc, lambda: Built(b"first", ""))
    (entry,) = (path for path in folder.iterdir() if path.is_dir())
    for request in requests[1:]:
        with monkeypatch.context() as patch:
            for name in request[2:]:
                patch.setattr(provide, name, lambda *arguments: "another")
            key = provide.cache_key(*request[:2])
            assert key != entry.name
            subprocess.run(["cp", "-r", entry, folder / key], check=True)
            assert provide.kept_native(*request[:2], lambda: Built(b"second", "")) == b"second"
    assert provide.kept_native(source, desc, lambda: Built(b"second", "")) == b"first"


def as_link(path, elsewhere):
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def as_folder(path, elsewhere):
    path.rename(elsewhere)
    path.mkdir()


def as_pipe(path, elsewhere):
    path.rename(elsewhere)
    os.mkfifo(path)


def as_socket(path, elsewhere):
    path.rename(elsewhere)
    where = Path.cwd()
    os.chdir(path.parent)  # paths of sockets are short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(path.name)
    finally:
        os.chdir(where)


def as_huge(path, elsewhere):
    with open(path, "r+b") as file:
        file.truncate(1 << 40)  # sparse


@pytest.mark.filterwarnings("ignore:xeflash")
@pytest.mark.parametrize("what", [as_link, as_folder, as_pipe, as_socket, as_huge])
@pytest.mark.parametrize("name", ["key", "key/kernel.bin", "key/meta.json"])
def test_what_is_no_file_of_ours_is_replaced(folder, tmp_path, name, what):
    plant(folder)
    if what is as_huge and name == "key":
        pytest.skip("folders have no size")
    what(folder / name, tmp_path / "elsewhere")
    before = states(tmp_path / "elsewhere") if (tmp_path / "elsewhere").exists() else None
    assert get() == b"ours"
    assert cache.read("key", META) == b"ours"
    assert (folder / name).stat().st_size < 1 << 20 and not (folder / name).is_symlink()
    assert before is None or states(tmp_path / "elsewhere") == before


def test_meta_that_is_nested_without_end_is_built_again(folder):
    plant(folder)
    (folder / "key" / "meta.json").write_text("[" * 500_000)
    assert get() == b"ours"


def test_logs_are_written_beside_links_not_through_them(folder, tmp_path):
    plant(folder)
    (tmp_path / "precious").write_text("mine")
    (folder / "a.log").symlink_to(tmp_path / "precious")
    assert cache.keep_log("a.log", "text").read_text() == "text"
    assert (tmp_path / "precious").read_text() == "mine"


# ---- locks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe", "folder", "of others"])
def test_a_lock_that_is_no_file_of_ours_is_left_alone(folder, tmp_path, kind):
    folder.mkdir(0o700)
    lock, precious = folder / ".key.lock", tmp_path / "precious"
    precious.write_text("mine")
    if kind in ("link", "dangling"):
        lock.symlink_to(precious if kind == "link" else tmp_path / "absent")
    elif kind == "pipe":
        os.mkfifo(lock)
    elif kind == "folder":
        lock.mkdir()
    else:
        lock.write_text("theirs")
        chown(lock, OTHER)
    with pytest.warns(RuntimeWarning, match="XEFLASH_CACHE_DIR") as found:
        assert get() == get() == b"ours"
    assert len(found) == 1
    assert precious.read_text() == "mine" and not (tmp_path / "absent").exists()
    assert not (folder / "key").exists()


def test_a_lock_keeps_its_content(folder):
    folder.mkdir(0o700)
    (folder / ".key.lock").write_text("a note")
    assert get() == b"ours"
    assert (folder / ".key.lock").read_text() == "a note"


KILLED = """
import os, signal, sys
from xeflash.runtime import cache_folder
from xeflash.jit import cache

left = int(sys.argv[1])
for name in ("open", "rename", "mkdir"):
    def counted(*words, function=getattr(os, name), **more):
        global left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*words, **more)
    setattr(os, name, counted)
cache.get_or_build("key", "source", {"a": 1}, lambda: cache.Built(b"theirs", ""))
"""


def test_a_process_that_dies_leaves_all_of_an_entry_or_none(folder):
    """At several steps of it."""
    outcomes = []
    for step in range(3, 70, 6):
        done = subprocess.run([sys.executable, "-c", KILLED, str(step)], capture_output=True, text=True)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        found = cache.read("key", {"a": 1})
        outcomes.append((done.returncode, found))
        assert found in (None, b"theirs")
        if done.returncode == 0:
            break
        if found is not None:
            subprocess.run(["rm", "-r", folder / "key"], check=True)
    assert outcomes[0] == (-signal.SIGKILL, None) and outcomes[-1] == (0, b"theirs")


# ---- where the folder is --------------------------------------------------------------------------


def test_without_a_home_the_folder_is_a_private_one_below_tmp(folder, tmp_path, monkeypatch):
    for name in ("XEFLASH_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def nobody(uid):
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    made = tmp_path / f"xeflash-{os.geteuid()}"
    with pytest.warns(RuntimeWarning) as found:
        assert get() == b"ours"
        assert cache.read("key", META) == b"ours"
    assert warned_once(found, str(made), "XEFLASH_CACHE_DIR")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


HOMELESS = """
import os, pwd, sys, warnings
warnings.simplefilter("always")
import numpy as np, xeflash
if sys.argv[1:]:
    os.setgroups([]), os.setgid(int(sys.argv[1])), os.setuid(int(sys.argv[1]))
else:
    pwd.getpwuid = {}.__getitem__
for dim in (8, 24):
    q = np.ones((1, 1, 9, dim), np.float32)
    assert abs(xeflash.attention(q, q, q) - 1).max() < 1e-6
"""


def test_calls_run_without_home_and_passwd_entry():
    """In a process of a user of whom nothing is known, where this one may become it."""
    needed = [Path(folder).resolve() for folder in (sys.prefix, sys.base_prefix)]
    ways = {parent for folder in needed for parent in (folder, *folder.parents)}
    may_become = os.geteuid() == 0 and all(path.stat().st_mode & 0o001 for path in ways)
    with tempfile.TemporaryDirectory(dir="/tmp") as scratch:
        os.chmod(scratch, 0o1777)
        drop = ("HOME", "XDG_CACHE_HOME", "XEFLASH_CACHE_DIR", "XEFLASH_OCLOC")
        environment = {name: value for name, value in os.environ.items() if name not in drop} | {"TMPDIR": scratch}
        done = subprocess.run(
            [sys.executable, "-c", HOMELESS, *["54321"] * may_become], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("RuntimeWarning") == 1 and "no home folder" in done.stderr
        made = Path(scratch) / f"xeflash-{54321 if may_become else os.geteuid()}"
        assert len([path for path in made.iterdir() if path.is_dir()]) == 2
