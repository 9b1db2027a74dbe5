"""What all tests share; the modules beside it (reference, tolerance, arrays, cases) are imported by name.

Tests marked `gpu` run on an Intel GPU where SYCL sees one, on tensors of torch's where torch has xpu; those marked `xpu`
need torch's. `pytest --sim bmg` runs them on simulated GPUs: two of pvc, bmg or dg2, which torch has as xpu:0 and xpu:1
(torch_xpu). Simulated GPUs need ocloc, which the process that a person starts provides (offline_compiler.py).
"""

import os

import hypothesis
import offline_compiler
import pytest
import torch_xpu

# Of simulated GPUs, and in all processes that tests start: a kernel that spills is a fault, too.
os.environ.setdefault("XEFLASH_SIM_CHECK", "all,spills")

hypothesis.settings.register_profile("default", deadline=None, print_blob=True)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_addoption(parser):
    parser.addoption("--sim", metavar="DEVICE", help="run the tests marked gpu, on this simulated GPU: pvc, bmg or dg2")
    parser.addoption(
        "--part", metavar="K/N", default="1/1", help="with --sim: only the K-th of N parts of them (dealing.py)"
    )


def pytest_configure(config):
    config.addinivalue_line("markers", "gpu: runs on an Intel GPU, a real one or a simulated one (--sim)")
    config.addinivalue_line("markers", "xpu: the same, on torch tensors on xpu")
    if device := config.getoption("--sim"):
        give_simulated_gpus(device)


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


@pytest.hookimpl(tryfirst=True)  # before pytest looks for what -m asks for
def pytest_collection_modifyitems(config, items):
    for item in items:
        # Of a module that names some of its tests so, the others run on xpu in the long set.
        names = getattr(getattr(item, "module", None), "ON_XPU", ("",))
        if item.get_closest_marker("xpu") and not any(name in item.function.__name__ for name in names):
            item.add_marker(pytest.mark.long)
    if not config.getoption("--sim"):
        return
    part, parts = map(int, config.getoption("--part").split("/"))
    chosen = [item for item in items if item.get_closest_marker("gpu") or item.get_closest_marker("xpu")]
    if parts > 1:
        import dealing  # which imports xeflash

        chosen = [item for item in chosen if dealing.part_of(item.nodeid, parameters_of(item), parts) == part]
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = chosen


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
    """One line for all tests that are missing for one reason."""
    skipped = [r for r in terminalreporter.stats.get("skipped", []) if offline_compiler.REASON in str(r.longrepr)]
    if skipped:
        why = config.stash.get(no_ocloc, "")
        terminalreporter.write_line(f"{len(skipped)} tests of simulated GPUs were skipped for want of ocloc: {why}")


@pytest.fixture(scope="session")
def ocloc():
    """Intel's offline compiler, or skip."""
    return offline_compiler.need_ocloc()


@pytest.fixture(autouse=True)
def same_random_numbers(monkeypatch):
    """Tests draw from torch's global generator, dropout until xeflash.manual_seed: the same whichever tests ran before."""
    import torch
    from xeflash import _random

    torch.manual_seed(0)
    monkeypatch.setattr(_random, "_seed", None)


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
    import torch
    from xeflash import sim

    failed_before = request.session.testsfailed
    if sim.enabled():
        sim.clear_fault()
        sim.clear_launches()
    yield gpu_family
    if torch.xpu.is_available():
        torch.xpu.synchronize()  # simulated GPUs begin to work when somebody waits
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
