"""The kernel cache on disk: shared, killed, damaged, read-only; and what its keys depend on."""

import dataclasses
import hashlib
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import pytest
from xeflash.jit import cache, headers, kernel
from xeflash.jit.cache import Built

provide = importlib.import_module("xeflash.jit.provide")  # the package has the function under this name

DESC = kernel.Desc("flash_fwd", "cpu-avx512", "float32", 24, 24, 64, device="a cpu", driver="1.0")
FILES = ["build.log", "kernel.bin", "meta.json", "source.cpp"]

# A kernel that no wheel carries, checked against its own formula.
SCRIPT = """
import sys, warnings
import numpy as np, xeflash
warnings.simplefilter("always")
rng = np.random.default_rng(0)
for dim in map(int, sys.argv[1:]):
    q, k, v = rng.standard_normal((3, 1, 1, 9, dim), np.float32)
    out = xeflash.attention(q, k, v)
    p = np.exp(q @ k.swapaxes(-1, -2) / dim**0.5)
    np.testing.assert_allclose(out, p @ v / p.sum(-1, keepdims=True), atol=1e-5)
"""


def start(folder, *dims, **environment):
    environment = os.environ | {"XEFLASH_CACHE_DIR": str(folder)} | environment
    command = [sys.executable, "-c", SCRIPT, *map(str, dims)]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def finish(process):
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return errors


def entries(folder):
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def leftovers(folder):
    return [path.name for path in folder.iterdir() if path.is_dir() and path.name.startswith(".")]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XEFLASH_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


class Compiler:
    """Counts its runs."""

    def __init__(self, binary=b"a binary"):
        self.binary, self.runs = binary, 0

    def __call__(self):
        self.runs += 1
        return Built(self.binary, "a log\n")


# ---- processes ----------------------------------------------------------------------------------


def test_two_processes_fill_one_cache(tmp_path):
    for process in [start(tmp_path, 8, 24), start(tmp_path, 24, 8)]:
        assert finish(process) == ""
    assert len(entries(tmp_path)) == 2 and not leftovers(tmp_path)
    for entry in entries(tmp_path):
        assert sorted(path.name for path in entry.iterdir()) == FILES
        meta = json.loads((entry / "meta.json").read_text())
        assert meta["sha256"] == hashlib.sha256((entry / "kernel.bin").read_bytes()).hexdigest()
        assert "flash_fwd" in (entry / "source.cpp").read_text()
    before = [(path, path.stat().st_mtime_ns) for path in sorted(tmp_path.rglob("kernel.bin"))]
    finish(start(tmp_path, 8, 24))
    assert [(path, path.stat().st_mtime_ns) for path in sorted(tmp_path.rglob("kernel.bin"))] == before


def test_a_killed_compile_leaves_a_usable_cache(tmp_path):
    process = start(tmp_path, 8)
    deadline = time.monotonic() + 60
    while not any(tmp_path.iterdir()) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL, "it ended before it could be killed"
    assert not entries(tmp_path)
    assert finish(start(tmp_path, 8)) == ""
    assert len(entries(tmp_path)) == 1


@pytest.mark.wide
def test_targets_of_the_driver_do_not_share_native_code(tmp_path):
    """A home directory may be shared by machines whose CPUs have one name: here the driver is told to pretend."""
    flags = Path("/proc/cpuinfo").read_text().split()
    targets = [target for target, flag in {"core-avx2": "avx2", "skx": "avx512f"}.items() if flag in flags]
    for environment in [{}, *({"CL_CONFIG_CPU_TARGET_ARCH": target} for target in targets), {}]:
        assert finish(start(tmp_path, 8, **environment)) == ""


def test_a_binary_that_the_driver_refuses_is_built_again(tmp_path):
    finish(start(tmp_path, 8))
    (entry,) = entries(tmp_path)
    meta = json.loads((entry / "meta.json").read_text())
    (entry / "kernel.bin").write_bytes(b"of another driver")
    (entry / "meta.json").write_text(json.dumps(meta | {"sha256": hashlib.sha256(b"of another driver").hexdigest()}))
    finish(start(tmp_path, 8))


def test_a_cache_that_cannot_be_written_is_warned_about(tmp_path):
    (tmp_path / "file").write_text("no folder")
    errors = finish(start(tmp_path / "file", 8))
    assert "RuntimeWarning" in errors and "XEFLASH_CACHE_DIR" in errors and str(tmp_path / "file") in errors


# ---- entries ------------------------------------------------------------------------------------


def test_built_once_then_read(folder):
    compiler = Compiler()
    for _ in range(3):
        assert cache.get_or_build("key", "source", {"a": 1}, compiler) == b"a binary"
    assert compiler.runs == 1
    assert sorted(path.name for path in (folder / "key").iterdir()) == FILES
    assert (folder / "key" / "source.cpp").read_text() == "source"
    assert (folder / "key" / "build.log").read_text() == "a log\n"
    assert json.loads((folder / "key" / "meta.json").read_text())["a"] == 1
    assert not leftovers(folder)


DAMAGE = {
    "truncated": lambda entry: (entry / "kernel.bin").write_bytes(b"a bin"),
    "emptied": lambda entry: (entry / "kernel.bin").write_bytes(b""),
    "changed": lambda entry: (entry / "kernel.bin").write_bytes(b"a binarz"),
    "binary-lost": lambda entry: (entry / "kernel.bin").unlink(),
    "meta-lost": lambda entry: (entry / "meta.json").unlink(),
    "meta-truncated": lambda entry: (entry / "meta.json").write_text('{"sha'),
    "meta-emptied": lambda entry: (entry / "meta.json").write_text(""),
    "meta-list": lambda entry: (entry / "meta.json").write_text("[]"),
    "meta-no-text": lambda entry: (entry / "meta.json").write_bytes(b"\xff\xfe\x00"),
    "all-lost": lambda entry: [path.unlink() for path in entry.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_entry_is_built_again(folder, damage):
    compiler = Compiler()
    cache.get_or_build("key", "source", {}, compiler)
    DAMAGE[damage](folder / "key")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            assert cache.get_or_build("key", "source", {}, compiler) == b"a binary"
    assert compiler.runs == 2
    assert sorted(path.name for path in (folder / "key").iterdir()) == FILES


def test_a_file_in_the_place_of_an_entry_does_no_harm(folder):
    folder.mkdir()
    (folder / "key").write_text("a file")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert cache.get_or_build("key", "source", {}, Compiler()) == b"a binary"


def test_other_files_are_left_alone(folder):
    (folder / ".key.abandoned").mkdir(parents=True)  # of a killed process
    (folder / ".key.abandoned" / "kernel.bin").write_bytes(b"half")
    (folder / "notes.txt").write_text("mine")
    (folder / "folder").mkdir()
    compiler = Compiler()
    assert cache.get_or_build("key", "source", {}, compiler) == b"a binary" and compiler.runs == 1
    assert (folder / "notes.txt").read_text() == "mine" and (folder / "folder").is_dir()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_folder_is_read_and_warned_about(folder):
    cache.get_or_build("key", "source", {}, Compiler())
    folder.chmod(0o500)
    try:
        assert cache.get_or_build("key", "source", {}, Compiler(b"other")) == b"a binary"
        with pytest.warns(RuntimeWarning, match="XEFLASH_CACHE_DIR"):
            assert cache.get_or_build("new", "source", {}, Compiler()) == b"a binary"
    finally:
        folder.chmod(0o700)


def test_unusable_folder_builds_once_and_warns(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below", "/proc/xeflash"):
        monkeypatch.setenv("XEFLASH_CACHE_DIR", str(path))
        compiler = Compiler()
        with pytest.warns(RuntimeWarning, match="cannot be used"):
            assert cache.get_or_build("key", "source", {}, compiler) == b"a binary"
        assert compiler.runs == 1


def test_a_failed_build_leaves_nothing(folder):
    def fail():
        raise RuntimeError("does not compile")

    with pytest.raises(RuntimeError, match="does not compile"):
        cache.get_or_build("key", "source", {}, fail)
    assert not (folder / "key").exists() and not leftovers(folder)
    assert cache.get_or_build("key", "source", {}, Compiler()) == b"a binary"


def test_threads_build_once(folder):
    compiler = Compiler()

    def slow():
        time.sleep(0.1)
        return compiler()

    results = []
    threads = [
        threading.Thread(target=lambda: results.append(cache.get_or_build("key", "source", {}, slow))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [b"a binary"] * 4 and compiler.runs == 1


# ---- keys ---------------------------------------------------------------------------------------


def key_of(desc=DESC, **changes):
    return provide.cache_key(dataclasses.replace(kernel.render(desc), **changes), desc)


def test_key_changes_with_everything_the_binary_depends_on(monkeypatch):
    keys = [key_of(), key_of(text="other source"), key_of(options=("-std=c++20", "-O0"))]
    keys += [
        key_of(dataclasses.replace(DESC, **change))
        for change in ({"driver": "2"}, {"device": "b"}, {"hooks": ("SoftCap",)})
    ]
    for name in ("intel-sycl-rt", "intel-opencl-rt"):  # the compiler, and the driver's files
        installed = provide._installed
        monkeypatch.setattr(
            provide, "_installed", lambda x, name=name, of=installed: f"another {x}" if x == name else of(x)
        )
        keys.append(key_of())
    monkeypatch.setattr(provide, "digest_of_headers", lambda folder, kernel: "other headers")
    keys.append(key_of())
    monkeypatch.setattr(provide, "standard_libraries", lambda: ["another g++"])
    keys.append(key_of())
    monkeypatch.setenv("CL_CONFIG_CPU_VECTORIZER_MODE", "1")  # other code by the same driver
    keys.append(key_of())
    assert len(set(keys)) == len(keys)


def test_key_of_a_gpu_changes_with_the_flags_of_its_build(monkeypatch):
    desc = dataclasses.replace(DESC, arch="bmg", access="block2d")
    keys = [key_of(desc)]
    monkeypatch.setenv("CL_CONFIG_CPU_VECTORIZER_MODE", "1")
    assert keys == [key_of(desc)]  # this is the CPU's
    monkeypatch.setenv("IGC_ForceOCLSIMDWidth", "8")
    keys.append(key_of(desc))
    monkeypatch.setattr(provide._core, "GPU_BUILD_FLAGS", "-vc-codegen")
    keys.append(key_of(desc))
    assert len(set(keys)) == len(keys)


def test_key_tells_releases_of_gxx_by_their_headers(tmp_path, monkeypatch):
    config = tmp_path / "include/c++/12/x86_64-redhat-linux/bits/c++config.h"
    config.parent.mkdir(parents=True)
    found = []
    for day in ("20220819", "20230528"):
        config.write_text(f"// a comment\n#define __GLIBCXX__ {day}\n")
        monkeypatch.setattr(headers.sys, "prefix", str(tmp_path))
        found.append(headers.standard_libraries.__wrapped__())
        assert f"{config} {day}" in found[-1]
    assert found[0] != found[1]


class Installed:
    """A distribution, of which one file has another content."""

    version = "2026.2.0"

    def __init__(self, content):
        self.record = ["../../libsycl-jit.so,sha256=a,250", f"../../../include/sycl/sycl.hpp,sha256={content},9"]

    def read_text(self, name):
        # How it was installed, and by whom, does not matter.
        random = f"intel_sycl_rt-2026.2.0.dist-info/INSTALLER,sha256={os.urandom(4).hex()},4"
        return "\n".join([random, *reversed(self.record)])


def test_key_tells_compilers_of_one_release_by_their_files(monkeypatch):
    keys = []
    for content in "bcb":
        provide._installed.cache_clear()
        monkeypatch.setattr(
            provide.importlib.metadata, "distribution", lambda name, content=content: Installed(content)
        )
        keys.append(key_of())
    monkeypatch.undo()
    provide._installed.cache_clear()
    assert keys[0] == keys[2] != keys[1]
    assert key_of() not in keys


def test_key_is_the_same_for_the_same_kernel():
    assert key_of() == key_of(dataclasses.replace(DESC))
    assert "/" not in key_of() and not key_of().startswith(".")


def test_digest_sees_the_headers_that_a_kernel_includes(tmp_path):
    """Changes of others, and of the other backend's, leave a kernel's code as it is."""
    backends = '#if XEFLASH_BACKEND_CPU\n#include "cpu/a.hpp"\n#else\n#include "xe/a.hpp"\n#endif\n'
    texts = {
        "flash_fwd.hpp": '#include "tile.hpp"  // types\n',
        "tile.hpp": "#pragma once\n" + backends,
        "other.hpp": "",
    }
    texts |= {"cpu/a.hpp": "#include <vector>\n", "xe/a.hpp": '#include "tile.hpp"\n'}
    gpu = dataclasses.replace(DESC, arch="bmg", access="block2d")
    sources = [dataclasses.replace(kernel.render(desc), text='#include "flash_fwd.hpp"\n') for desc in (DESC, gpu)]

    def digests(**changes):
        for name, text in (texts | changes).items():
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text(text)
        kernel._header.cache_clear()
        return [kernel.digest_of_headers(tmp_path, source) for source in sources]

    before = digests()
    sees = {"other.hpp": (False, False), "cpu/a.hpp": (True, False), "xe/a.hpp": (False, True)}
    sees |= {"tile.hpp": (True, True), "flash_fwd.hpp": (True, True)}
    for name, expected in sees.items():
        after = digests(**{name: texts[name] + "int x;\n"})
        assert tuple(x != y for x, y in zip(before, after, strict=True)) == expected, name
    kernel._header.cache_clear()


def test_every_include_is_of_a_form_that_the_digest_follows():
    headers = {
        path.relative_to(provide.HEADERS).as_posix(): path.read_text() for path in provide.HEADERS.rglob("*.hpp")
    }
    lines = [
        line for text in headers.values() for line in text.splitlines() if re.match(r"\s*#\s*include|.*__has_inc", line)
    ]
    ours = [kernel._INCLUDE.match(line) for line in lines]
    assert {include[1] for include in ours if include} <= set(headers)
    others = [line for line, include in zip(lines, ours, strict=True) if not include]
    assert all(re.match("#include <.*>", line) for line in others)
    assert not {line[10:].partition(">")[0] for line in others} & set(headers)
