"""The simulated GPU as SYCL sees it: devices, memory, queues, builds, errors. Both Level Zero adapters of the runtime."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from cover import few, few_rows
from offline_compiler import need_ocloc

ADAPTERS = pytest.mark.parametrize("adapter", few([0, 1], 1), ids=["v1", "v2"])
CHECKS = pytest.mark.parametrize("check", ["all", "none"])
FAMILIES = {
    "pvc": {"name": "Data Center GPU Max 1550", "fp64": "1", "sub_groups": "16,32,", "local_memory": "131072",
            "compute_units": "512"},
    "bmg": {"name": "Arc(TM) B580", "fp64": "1", "sub_groups": "16,32,", "local_memory": "131072", "compute_units": "160"},
    "dg2": {"name": "Arc(TM) A770", "fp64": "0", "sub_groups": "8,16,32,", "local_memory": "65536", "compute_units": "512"},
}  # fmt: skip


def facts(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


@ADAPTERS
@pytest.mark.parametrize("family", FAMILIES)
def test_device_properties(simulated, sycl_program, family, adapter):
    found = facts(simulated.program(sycl_program, ["info"], family, adapter=adapter).stdout)
    want = FAMILIES[family]
    assert want["name"] in found.pop("name").removesuffix(" (simulated)")
    assert found["architecture"] == family
    for name in ("fp64", "sub_groups", "local_memory", "compute_units"):
        assert found[name] == want[name], name
    for aspect in ("fp16", "atomic64", "esimd", "matrix", "usm_device", "usm_shared", "usm_host"):
        assert found[aspect] == "1", aspect
    assert found["usm_system"] == "0"
    assert int(found["combinations"]) > 0


LIST = "import dpctl\nfor d in dpctl.get_devices(): print(d.backend, d.name)\n"


def test_several_devices_and_the_cpu(simulated):
    names = simulated.python(LIST, "bmg,pvc", "dg2").stdout
    assert [n for n in re.findall(r"(B580|Max 1550|A770) .*\(simulated\)|(B580|Max 1550|A770)", names)]
    assert names.index("B580") < names.index("Max 1550") < names.index("A770")
    assert names.count("(simulated)") == 3


@pytest.mark.parametrize("value", ["", "xyz"])
def test_without_a_known_name_there_is_no_device(simulated, value):
    folder = str(simulated.library.parent)
    done = simulated.python(LIST, XEFLASH_SIM=value, ZEL_LIBRARY_PATH=folder)
    assert "(simulated)" not in done.stdout
    assert ("no simulated device 'xyz'" in done.stderr) == (value == "xyz")


def test_opencl_cpu_device_stays(simulated):
    code = "import xeflash\n" + LIST
    names = simulated.python(code, XEFLASH_SIM="pvc").stdout
    if "opencl" not in simulated.python("import xeflash\n" + LIST).stdout:
        pytest.skip("no OpenCL CPU device here")
    assert "opencl" in names
    assert "(simulated)" in names


MEMORY = """
import numpy as np, dpctl, dpctl.memory as m
q = dpctl.SyclQueue("level_zero:gpu")
for kind in (m.MemoryUSMDevice, m.MemoryUSMShared, m.MemoryUSMHost):
    for n in (1, 23, 1000, 70001):
        data = (np.arange(n) % 251).astype(np.uint8)
        one, two = kind(n, queue=q), kind(n, queue=q)
        one.copy_from_host(data)
        two.memset(7)
        assert (np.frombuffer(two.copy_to_host(), np.uint8) == 7).all()
        two.copy_from_device(one)
        assert (np.frombuffer(two.copy_to_host(), np.uint8) == data).all(), (kind, n)
        assert one.get_usm_type() in kind.__name__.lower()
    del one, two
print("good")
"""


@ADAPTERS
@CHECKS
def test_memory_kinds(simulated, adapter, check):
    assert simulated.python(MEMORY, "pvc", adapter=adapter, check=check).stdout == "good\n"


def test_large_allocation_is_sparse(simulated):
    code = """
import dpctl, dpctl.memory as m, numpy as np
q = dpctl.SyclQueue("level_zero:gpu")
big = m.MemoryUSMDevice(40 << 30, queue=q)
class End:
    __sycl_usm_array_interface__ = {
        "data": (big._pointer + (40 << 30) - 64, False), "shape": (64,), "strides": None, "typestr": "|u1",
        "version": 1, "syclobj": q}
end = m.as_usm_memory(End())
end.memset(9)
assert bytes(end.copy_to_host()) == bytes([9] * 64)
try:
    more = m.MemoryUSMDevice(40 << 30, queue=q)
    print("no error")
except Exception as e:
    print(type(e).__name__)
"""
    assert "no error" not in simulated.python(code, "pvc").stdout


@ADAPTERS
def test_host_cannot_touch_device_memory(simulated, adapter):
    code = """
import ctypes, dpctl, dpctl.memory as m
q = dpctl.SyclQueue("level_zero:gpu")
x = m.MemoryUSMDevice(100, queue=q)
print(ctypes.c_int.from_address(x._pointer).value)
"""
    done = simulated.python(code, "pvc", adapter=adapter, status=-signal.SIGSEGV)
    assert "the host touched simulated memory that it cannot reach" in done.stderr
    assert "100-byte device allocation" in done.stderr
    assert simulated.python(code, "pvc", adapter=adapter, check="none").stdout == "0\n"


@ADAPTERS
def test_commands_run_when_the_host_waits(simulated, adapter):
    code = """
import dpctl, dpctl.memory as m
q = dpctl.SyclQueue("level_zero:gpu")
x, y = m.MemoryUSMShared(4, queue=q), m.MemoryUSMHost(4, queue=q)
memoryview(x)[:] = b"new!"
memoryview(y)[:] = b"old!"
event = q.memcpy_async(y, x, 4)
print(bytes(memoryview(y)).decode())
event.wait()
print(bytes(memoryview(y)).decode())
"""
    assert simulated.python(code, "pvc", adapter=adapter, check="deferred").stdout == "old!\nnew!\n"
    assert simulated.python(code, "pvc", adapter=adapter, check="none").stdout == "new!\nnew!\n"


@ADAPTERS
def test_polling_makes_progress(simulated, sycl_program, adapter):
    polls = facts(simulated.program(sycl_program, ["poll"], "pvc", check="all", adapter=adapter).stdout)["polls"]
    assert 0 < int(polls) < 100


@pytest.mark.parametrize(
    ("order", "adapter"),
    few_rows([("in_order", 1), ("out_of_order", 1), ("out_of_order", 0), ("in_order", 0)], ("out_of_order", 1)),
)
@pytest.mark.parametrize("topic", ["launches", "order", "graph", "profiling", "fault"])
def test_program(simulated, sycl_program, topic, order, adapter):
    need_ocloc()
    for check in ("all", "none") if topic in ("order", "fault") else ("all",):
        done = simulated.program(sycl_program, [topic, order], "pvc", adapter=adapter, check=check)
        found = facts(done.stdout)
        if topic == "order":
            assert done.stdout == "done\n"
        if topic == "profiling":
            assert found == {"ordered": "1"}
        if topic == "fault":
            assert "DEVICE_LOST" in found["exception"]
            assert found["wrong_after"] == "0"
            assert re.search(
                r"kernel \w*add_scaled.*right behind the end of the 4096-byte device allocation", done.stderr
            )
        else:
            assert all(int(n) == 0 for name, n in found.items() if name.startswith("wrong")), done.stdout


@pytest.mark.parametrize("family", few(FAMILIES, "bmg", "dg2"))
def test_launches_of_every_family(simulated, sycl_program, family):
    need_ocloc()
    found = facts(simulated.program(sycl_program, ["launches"], family).stdout)
    assert found == {"wrong": "0", "wrong_host": "0", "wrong_local": "0"}


@pytest.mark.wide
def test_queues_without_immediate_lists(simulated, sycl_program):
    need_ocloc()
    for topic in ("launches", "order", "graph"):
        done = simulated.program(sycl_program, [topic], "pvc", adapter=0, UR_L0_USE_IMMEDIATE_COMMANDLISTS="0")
        assert all(n == "0" for n in facts(done.stdout).values()), (topic, done.stdout)


@ADAPTERS
def test_build_log_reaches_the_exception(simulated, sycl_program, adapter):
    need_ocloc()
    found = simulated.program(sycl_program, ["build_error"], "pvc", adapter=adapter).stdout
    assert "SLM size exceeds target limits" in found


@ADAPTERS
def test_groups_larger_than_a_core_are_refused(simulated, sycl_program, adapter):
    need_ocloc()
    done = simulated.program(sycl_program, ["large_group"], "pvc", adapter=adapter)
    assert "cannot exceed 64" in done.stdout


def test_missing_compiler_is_explained(simulated, sycl_program, tmp_path):
    empty = {"PATH": str(tmp_path), "XEFLASH_OCLOC": "", "XEFLASH_CACHE_DIR": str(tmp_path)}
    done = simulated.program(sycl_program, ["build_error"], "pvc", **empty)
    assert "python -m xeflash.sim.get_ocloc" in done.stdout
    broken = simulated.program(sycl_program, ["build_error"], "pvc", **empty | {"XEFLASH_OCLOC": str(tmp_path / "no")})
    assert "XEFLASH_OCLOC names" in broken.stdout


DRIVER_VERSION = "import dpctl\nprint(dpctl.SyclDevice('level_zero:gpu').driver_version)\n"


def ocloc_that_says(version: str, folder: Path) -> str:
    """A program that knows its version and compiles nothing."""
    path = folder / f"ocloc-{version}"
    path.write_text(f'#!/bin/sh\n[ "$1" = query ] && echo {version}\n')
    path.chmod(0o755)
    return str(path)


def test_driver_version_tells_the_compiler(simulated, tmp_path):
    """Caches of native code (xeflash's, the runtime's) know a driver by it."""
    for version in ("26.27.039122", "26.30.1"):
        said = simulated.python(DRIVER_VERSION, "bmg", XEFLASH_OCLOC=ocloc_that_says(version, tmp_path)).stdout.strip()
        assert re.search(rf"\+ocloc\.{version}\.[0-9a-f]{{16}}$", said)
    without = simulated.python(DRIVER_VERSION, "bmg", XEFLASH_OCLOC=str(tmp_path / "no")).stdout.strip()
    assert re.fullmatch(r"[\d.]+", without)


def test_driver_version_tells_what_the_compiler_loads(simulated, tmp_path):
    """Of one ocloc with another libigc, which writes the code, nothing is taken from a cache."""
    with open("/proc/self/maps") as maps:
        any_library = next(line.split()[-1] for line in maps if "/libm." in line)
    library = Path(shutil.copy(any_library, tmp_path / "libigc.so.2"))
    program = Path(ocloc_that_says("26.27.1", tmp_path))
    program.write_text(program.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\nLD_PRELOAD={library} /bin/true\n"))

    def said() -> str:
        return simulated.python(DRIVER_VERSION, "bmg", XEFLASH_OCLOC=str(program)).stdout.strip()

    before = said()
    program.rename(program := tmp_path / "elsewhere")
    assert said() == before
    with library.open("ab") as file:
        file.write(b"of another release")
    assert said() != before


def test_ocloc_loads_the_compiler_when_it_is_asked_for_its_revision(tmp_path):
    command = [need_ocloc(), "query", "IGC_REVISION"]
    done = subprocess.run(command, cwd=tmp_path, env=os.environ | {"LD_DEBUG": "libs"}, capture_output=True, text=True)
    assert re.search(r"calling init: \S*/libigc\.so", done.stdout + done.stderr)


@pytest.mark.wide
def test_old_compiler_is_refused_for_new_devices(simulated, sycl_program, tmp_path):
    old = ocloc_that_says("22.43.24595", tmp_path)
    done = simulated.program(sycl_program, ["build_error"], "bmg", XEFLASH_OCLOC=old, XEFLASH_CACHE_DIR=str(tmp_path))
    assert "ocloc 22.43.24595" in done.stdout
    assert "too old for bmg" in done.stdout
    assert "get_ocloc" in done.stdout


@pytest.mark.wide
def test_two_processes_build_at_once(simulated, sycl_program, tmp_path):
    need_ocloc()
    environment = simulated.environment(
        XEFLASH_SIM="pvc", ZEL_LIBRARY_PATH=str(simulated.library.parent), XEFLASH_CACHE_DIR=str(tmp_path)
    )
    running = [simulated.start([str(sycl_program), "launches"], environment) for _ in range(2)]
    for process in running:
        out, err = process.communicate(timeout=300)
        assert facts(out) == {"wrong": "0", "wrong_host": "0", "wrong_local": "0"}, err
    entries = [path.name for path in (tmp_path / "xesim").iterdir()]
    assert entries and all(name.endswith(".bin") for name in entries)


@pytest.mark.wide
def test_damaged_cache_entries_are_rebuilt(simulated, sycl_program, tmp_path):
    need_ocloc()

    def run() -> None:
        simulated.program(sycl_program, ["launches"], "pvc", XEFLASH_CACHE_DIR=str(tmp_path))

    run()
    entries = sorted((tmp_path / "xesim").iterdir())
    whole = [path.read_bytes() for path in entries]
    times = [path.stat().st_mtime_ns for path in entries]
    run()
    assert times == [path.stat().st_mtime_ns for path in entries]
    for i, path in enumerate(entries):
        path.write_bytes(whole[i][:-1] + bytes([whole[i][-1] ^ 1]) if i % 2 else whole[i][: len(whole[i]) // 2])
    run()
    assert sorted((tmp_path / "xesim").iterdir()) == entries
    assert all(len(path.read_bytes()) > 1000 for path in entries)
    run()


@pytest.mark.wide
def test_builds_that_others_may_have_written_are_not_run(simulated, sycl_program, tmp_path):
    need_ocloc()
    builds = tmp_path / "xesim"

    def run() -> str:
        return simulated.program(sycl_program, ["launches"], "pvc", XEFLASH_CACHE_DIR=str(tmp_path)).stderr

    def times() -> dict[Path, int]:
        return {path: path.lstat().st_mtime_ns for path in (builds, *builds.iterdir())}

    assert run() == "" and builds.stat().st_mode & 0o777 == 0o700
    whole = times()
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in builds.iterdir())
    builds.chmod(0o777)
    assert f"xesim: {builds} must be writable by its owner only (chmod go-w), its mode is 0777" in run()
    assert times() == whole
    builds.chmod(0o700)
    entry = next(builds.iterdir())
    for spoil in (lambda: entry.chmod(0o666), lambda: as_link(entry, tmp_path / "away"), lambda: as_pipe(entry)):
        spoil()
        before = times()
        assert run() == ""
        assert {path for path, time in times().items() if time != before[path]} == {builds, entry}
        assert entry.stat().st_mode & 0o777 == 0o600 and entry.is_file() and not entry.is_symlink()


def as_link(path: Path, elsewhere: Path) -> None:
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.wide
def test_a_compiler_that_others_may_have_written_is_not_run(simulated, sycl_program, tmp_path):
    (tmp_path / "ocloc").mkdir(mode=0o755)
    program = Path(ocloc_that_says("26.99.1", tmp_path)).rename(tmp_path / "ocloc" / "ocloc")

    def run() -> str:
        cache = {"XEFLASH_OCLOC": "", "XEFLASH_CACHE_DIR": str(tmp_path)}
        return simulated.program(sycl_program, ["build_error"], "pvc", **cache).stdout

    assert "ocloc 26.99.1" in run()
    program.chmod(0o777)
    assert f"{program} must be writable by its owner only" in run()
    program.chmod(0o755)
    program.parent.chmod(0o777)
    assert f"{program.parent} must be writable by its owner only" in run()


@pytest.mark.wide
@ADAPTERS
def test_persistent_kernel_cache_of_the_runtime(simulated, sycl_program, tmp_path, adapter):
    """Native binaries go to the runtime's cache and come back: the second process compiles nothing.

    Unless it has another compiler.
    """
    need_ocloc()
    cache = {"SYCL_CACHE_PERSISTENT": "1", "SYCL_CACHE_DIR": str(tmp_path / "sycl")}

    def run(status: int | None = 0, **more: str) -> subprocess.CompletedProcess[str]:
        return simulated.program(sycl_program, ["launches"], "pvc", adapter=adapter, status=status, **cache, **more)

    same = tmp_path / "ocloc"  # which compiles nothing
    same.write_text(f'#!/bin/sh\n[ "$1" = query ] && exec {need_ocloc()} "$@"\n')
    same.chmod(0o755)
    for more in ({}, {"XEFLASH_OCLOC": str(same), "XEFLASH_CACHE_DIR": str(tmp_path)}):
        assert facts(run(**more).stdout) == {"wrong": "0", "wrong_host": "0", "wrong_local": "0"}
    other = run(None, XEFLASH_OCLOC=ocloc_that_says("26.99.1", tmp_path), XEFLASH_CACHE_DIR=str(tmp_path))
    assert "ocloc 26.99.1" in other.stderr


OPENCL = """
kernel void scale(global float* x, float a, local float* scratch) {
  scratch[get_local_id(0)] = a;
  barrier(CLK_LOCAL_MEM_FENCE);
  x[get_global_id(0)] *= scratch[get_local_size(0) - 1 - get_local_id(0)];
}
"""


@ADAPTERS
def test_dpctl_program_from_spirv(simulated, tmp_path, adapter):
    source = tmp_path / "scale.cl"
    source.write_text(OPENCL)
    command = [need_ocloc(), "compile", "-q", "-file", str(source), "-device", "pvc", "-spv_only"]
    subprocess.run([*command, "-output", "scale", "-out_dir", str(tmp_path)], check=True, capture_output=True)
    spirv = next(path for path in tmp_path.iterdir() if path.suffix == ".spv")
    code = f"""
import ctypes, numpy as np, dpctl, dpctl.memory as m, dpctl.program as p
q = dpctl.SyclQueue("level_zero:gpu")
program = p.create_program_from_spirv(q, open({str(spirv)!r}, "rb").read(), "")
kernel = program.get_sycl_kernel("scale")
x = m.MemoryUSMDevice(4 * 128, queue=q)
x.copy_from_host(np.arange(128, dtype=np.float32).view(np.uint8))
arguments = [x, ctypes.c_float(3), dpctl.LocalAccessor("f4", (32,))]
q.submit(kernel, arguments, [128], [32]).wait()
assert (np.frombuffer(x.copy_to_host(), np.float32) == 3 * np.arange(128)).all()
record, = sim.last_launches()
assert (record.kernel, record.device, record.groups, record.local) == ("scale", "pvc", (4, 1, 1), (32, 1, 1)), record
assert record.global_written == 4 * 128 and record.slm_written > 0 and record.barriers > 0, record
sim.clear_launches()
assert sim.last_launches() == []
assert sim.last_fault() == ""
del x
x = m.MemoryUSMDevice(4 * 100, queue=q)
try:
    q.submit(kernel, [x, ctypes.c_float(3), dpctl.LocalAccessor("f4", (32,))], [128], [32])
    q.wait()
except Exception as error:
    print(type(error).__name__)
assert "400-byte device allocation" in sim.last_fault(), sim.last_fault()
"""
    simulated.python(code, "pvc", adapter=adapter)


def test_enable_twice_and_too_late(simulated):
    code = """
sim.enable("pvc,bmg")
assert sim.enabled() == ("pvc", "bmg")
for call in (lambda: sim.enable("dg2"), lambda: sim.set_check("quick"), lambda: sim.enable("gen9"), lambda: sim.enable()):
    try:
        call()
        print("accepted")
    except (RuntimeError, ValueError) as error:
        print(error)
"""
    lines = simulated.python(code, "pvc", "bmg").stdout.splitlines()
    assert len(lines) == 4
    assert "simulates pvc, bmg already" in lines[0]
    assert "'quick' is not understood" in lines[1]
    assert "no simulated device 'gen9'" in lines[2]
    late = "import dpctl\ndpctl.get_devices()\nimport xeflash.sim as sim\nsim.enable('pvc')\n"
    done = simulated.python(late, status=1)
    assert "SYCL has looked for devices in this process already" in done.stderr


def test_checks_can_be_changed(simulated):
    code = """
print(sim.get_check())
sim.set_check("none,seed=7,dpas=stepwise")
print(sim.get_check())
sim.set_check("slm-races, math")
print(sim.get_check())
sim.set_check("")
print(sim.get_check())
"""
    first, second, third, fourth = simulated.python(code, "pvc", check="all").stdout.splitlines()
    assert first.startswith("bounds,uninit,host,deferred,slm-races,global-races,interleave,block2d,math,")
    assert second == "bounds,dpas=stepwise,seed=7"
    assert third == "bounds,slm-races,math,dpas=exact,seed=0"
    assert fourth == first


def test_wrong_handles_and_pointers_are_refused(simulated):
    """Every function of the API with nulls, and with numbers that are no handle: an error code, never a crash."""
    symbols = subprocess.run(
        ["nm", "-D", "--defined-only", str(simulated.library)], capture_output=True, text=True, check=True
    )
    names = [n for n in re.findall(r" T (ze[A-Z]\w+)", symbols.stdout) if "ProcAddrTable" not in n]
    names = [n for n in names if not n.startswith("zeLoader") and n not in ("zeInit", "zeInitDrivers", "zeDriverGet")]
    assert len(names) > 90
    code = f"""
import ctypes
library = ctypes.CDLL({str(simulated.library)!r})
library.zeInit(0)
for name in {names!r}:
    for value in (0, 0x1000):
        function = getattr(library, name)
        function.restype = ctypes.c_uint32
        arguments = [ctypes.c_void_p(value)] + [ctypes.c_void_p(0)] * 11
        result = function(*arguments)
        assert result >= 0x70000000, (name, value, hex(result))
"""
    simulated.python(code, XEFLASH_SIM="pvc")
