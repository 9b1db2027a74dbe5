"""What all tests share; the modules beside it (reference, tolerance, arrays, cases) are imported by name.

Tests marked `gpu` run on an Intel GPU where SYCL sees one, on tensors of torch's where torch has xpu; those marked `xpu`
need torch's. `pytest --sim bmg` runs them on simulated GPUs: two of pvc, bmg or dg2, which torch has as xpu:0 and xpu:1
(torch_xpu). Simulated GPUs need ocloc, which the process that a person starts provides (offline_compiler.py). Where there
is no GPU, files that have no other tests are not even imported, which takes seconds.
"""

import ctypes
import functools
import gc
import os
import re
import subprocess
from collections import Counter

import offline_compiler
import pytest
import shards
import torch_xpu

pytest_plugins = ["run_report", "unchanged", "kernel_list"]

# Of simulated GPUs, and in all processes that tests start: a kernel that spills is a fault, too.
os.environ.setdefault("XEFLASH_SIM_CHECK", "all,spills")

# Lists and pages say what the tables choose, whatever was measured on this machine.
os.environ.setdefault("XEFLASH_TUNED", "off")

# There is a process per core. Threads of torch and numpy that wait for each other on cores that are taken double the time.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(name, "1")

# glibc keeps what tests free: a process would grow by gigabytes. Large blocks go back to the system at once; smaller ones
# stay until a file of tests ends, as new pages cost a fifth of the time of tests.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
libc = ctypes.CDLL(None)
for option, value in ((M_TRIM_THRESHOLD, 1 << 27), (M_MMAP_THRESHOLD, 1 << 25), (M_ARENA_MAX, 2)):
    libc.mallopt(option, value)


def pytest_addoption(parser):
    parser.addoption("--sim", metavar="DEVICE", help="run the tests marked gpu, on this simulated GPU: pvc, bmg or dg2")
    parser.addoption("--dealt", action="store_true", help="with --sim: only those that are dealt to it (dealing.py)")
    parser.addoption("--shard", metavar="K/N", default="1/1", help="run only the K-th of N shards (dealing.py)")


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: runs on an Intel GPU, a real one or a simulated one (--sim)")
    config.addinivalue_line("markers", "xpu: the same, on torch tensors on xpu")
    config.addinivalue_line(
        "markers", "first: a run in this one, which begins before other tests and has the same shard"
    )
    try:
        shards.parse(config.getoption("--shard"))
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    if device := config.getoption("--sim"):
        give_simulated_gpus(device)
    elif config.getoption("--dealt"):
        raise pytest.UsageError("--dealt needs --sim DEVICE, whose tests it chooses from")


def pytest_report_header(config):
    """Tests that are not for this process are not listed."""
    if not config.getoption("--sim") and not has_gpu():
        return "no Intel GPU: tests marked gpu run below tests/xesim/test_attention.py, or here with --sim bmg"
    return None


no_torch_xpu = ""  # why torch has none of the simulated GPUs


def give_simulated_gpus(device):
    """Two of them, to SYCL and to torch. Neither is imported yet: both look for devices once."""
    global no_torch_xpu
    from xeflash import sim

    sim.enable(device, device)
    try:
        torch_xpu.install()
    except torch_xpu.BuildError as error:
        no_torch_xpu = str(error)


@functools.cache
def has_gpu():
    """Whether SYCL sees one in this process."""
    try:
        import dpctl
    except ImportError:
        return False
    import xeflash

    assert xeflash.attention  # loads the extension, and the simulator if the environment asks for it
    try:
        return bool(dpctl.SyclQueue("level_zero:gpu"))
    except dpctl.SyclQueueCreationError:
        return False


def pytest_ignore_collect(collection_path, config):
    if collection_path.suffix != ".py" or not collection_path.name.startswith("test_"):
        return None
    text = collection_path.read_text()
    if config.getoption("--sim"):
        return None if re.search(r"mark\.(gpu|xpu)\b|def \w+\([^)]*\bdevice\b", text) else True
    return True if re.search(r"^pytestmark = .*mark\.gpu\b", text, re.MULTILINE) and not has_gpu() else None


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config, items):
    for item in items:
        # Of a module that names some of its tests so, the others run on GPUs in the wide set.
        names = getattr(getattr(item, "module", None), "GPU_TESTS", ("",))
        assert isinstance(names, tuple), f"{item.nodeid}: GPU_TESTS must be a tuple, got {names!r}"
        on_gpu, is_long = item.get_closest_marker("gpu"), item.get_closest_marker("long")
        if on_gpu and not is_long and not any(name in item.name for name in names):
            item.add_marker(pytest.mark.wide)
    chosen = [item for item in items if runs_here(config, item)]
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen
    yield  # pytest takes out what -m and -k leave out
    first = [item for item in items if item.get_closest_marker("first")]
    items[:] = [item for item in items if not item.get_closest_marker("first")]
    # Each worker of pytest-xdist begins with a slice of the tests.
    slices = int(getattr(config, "workerinput", {}).get("workercount", 1))
    total = len(first) + len(items)
    for i in range(slices):
        start = total * i // slices
        items[start:start] = first[i::slices]


def pytest_collection_finish():
    """What is there now stays: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    # dpctl has programs started by fork, for the sake of a debugger: for a process of this size that takes 20 ms.
    subprocess._USE_VFORK = True


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    if nextitem is None or nextitem.path != item.path:
        libc.malloc_trim(0)


def runs_here(config, item):
    """Whether a test is for this process: no other is listed as skipped, as it runs elsewhere."""
    needs_gpu = item.get_closest_marker("gpu") or item.get_closest_marker("xpu")
    if device := config.getoption("--sim"):
        if not needs_gpu:
            return False
    elif needs_gpu and not has_gpu():
        return False
    if config.getoption("--dealt") or (config.getoption("--shard") != "1/1" and not item.get_closest_marker("first")):
        import dealing  # which imports xeflash

        number, total = shards.parse(config.getoption("--shard"))
        if dealing.shard_of(item.nodeid, parameters_of(item), total) != number:
            return False
        return not config.getoption("--dealt") or dealing.device_of(item.nodeid, parameters_of(item)) == device
    return True


def parameters_of(item):
    return item.callspec.params if hasattr(item, "callspec") else {}


no_ocloc = pytest.StashKey[str]()


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session):
    """Before workers start: they inherit the environment."""
    config = session.config
    if not hasattr(config, "workerinput") and not config.option.collectonly:
        config.stash[no_ocloc] = offline_compiler.provide(
            config.pluginmanager.get_plugin("terminalreporter").write_line
        )


def pytest_terminal_summary(terminalreporter, config):
    """Says each reason for skipping once."""
    skipped = [report.longrepr for report in terminalreporter.stats.get("skipped", [])]
    reasons = Counter(str(why[2] if isinstance(why, tuple) else why).removeprefix("Skipped: ") for why in skipped)
    for reason, count in reasons.most_common():
        more = f": {config.stash.get(no_ocloc, '')}" if reason == offline_compiler.REASON else ""
        terminalreporter.write_line(f"{count} skipped: {reason}{more}")


@pytest.fixture(scope="session")
def ocloc():
    """Intel's offline compiler, or skip."""
    return offline_compiler.need_ocloc()


@pytest.fixture(autouse=True)
def same_random_numbers(monkeypatch):
    """Tests draw from torch's global generator, dropout until xeflash.manual_seed: the same whichever tests ran before."""
    import torch
    from xeflash.call import random

    torch.manual_seed(0)
    monkeypatch.setattr(random, "_seed", None)


@pytest.fixture
def split(monkeypatch):
    """Calls of this test divide the keys into so many splits."""
    import xeflash

    forward = xeflash._core.forward

    def into(splits):
        monkeypatch.setattr(xeflash._core, "forward", lambda **given: forward(**given | {"num_splits": splits}))

    return into


@pytest.fixture(scope="session")
def gpu_family():
    """pvc, bmg or dg2: the GPU that usm.gpu_queue() is for, or skip."""
    dpctl = pytest.importorskip("dpctl")
    import usm
    import xeflash

    if os.environ.get("XEFLASH_SIM"):
        offline_compiler.need_ocloc()
    assert xeflash.attention  # loads the extension
    try:
        name = usm.gpu_queue().sycl_device.name
    except dpctl.SyclQueueCreationError:
        pytest.skip("SYCL sees no Intel GPU by Level Zero here; pytest --sim bmg simulates one")
    return next(device["arch"] for device in xeflash._core.devices() if device["name"] == name)


@pytest.fixture
def gpu(request, gpu_family):
    """The same for one test, which fails if the simulator found fault with it, even if no call raised."""
    import run_report
    import torch
    from xeflash import sim

    failed_before = request.session.testsfailed
    if sim.enabled():
        sim.clear_fault()
        sim.clear_launches()
    yield gpu_family
    if torch.xpu.is_available():
        torch.xpu.synchronize()  # simulated GPUs begin to work when somebody waits
    if sim.enabled():
        run_report.simulated += sum(record.simulation_seconds for record in sim.last_launches())
    fault = sim.last_fault() if sim.enabled() else ""
    if fault and request.session.testsfailed == failed_before:
        pytest.fail(fault, pytrace=False)


@pytest.fixture
def xpu(gpu):
    """The same where torch has the GPU as its device xpu, or skip."""
    import torch

    if not torch.xpu.is_available():
        pytest.skip(no_torch_xpu or "torch has no xpu device here; pytest --sim bmg -m xpu simulates two")
    torch.xpu.manual_seed_all(0)
    return gpu


@pytest.fixture(params=["cpu", pytest.param("xpu", marks=[pytest.mark.gpu, pytest.mark.xpu])])
def device(request):
    """Tensors of the test are made on the CPU, and, where torch has it, on xpu."""
    import torch

    if request.param == "xpu":
        request.getfixturevalue("xpu")
    with torch.device(request.param):
        yield request.param
