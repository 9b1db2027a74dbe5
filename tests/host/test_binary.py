"""What the extension asks of the process it is loaded into.

libsycl_symbols.txt lists the symbols it takes from libsycl 2026.0.0, the oldest it must work with. It was made by
`python tests/host/libsycl_symbols.py LIBSYCL > tests/host/libsycl_symbols.txt`; see there.
"""

import subprocess
import sys
from pathlib import Path

import pytest
from cover import few
from libsycl_symbols import DT_NEEDED, DT_RUNPATH, Elf, extension, is_sycls

LISTED = (Path(__file__).parent / "libsycl_symbols.txt").read_text().split()


@pytest.fixture(scope="module")
def core():
    return Elf(extension())


def test_needs_no_symbol_newer_than_libsycl_2026_0(core):
    needed = {symbol for symbol in core.symbols(defined=False) if is_sycls(symbol)}
    assert needed, "no SYCL symbol found: is the filter right?"
    assert sorted(needed - set(LISTED)) == []


def test_list_of_symbols_is_not_stale(core):
    assert sorted(set(LISTED) - core.symbols(defined=False)) == []


def test_installed_libsycl_has_the_symbols():
    from xeflash.runtime import extension

    path = extension.in_distribution("intel-sycl-rt", extension.LIBSYCL)
    assert sorted(set(LISTED) - Elf(path).symbols(defined=True)) == []


def test_needs_libsycl_9_and_no_torch(core):
    needed = core.dynamic(DT_NEEDED)
    assert "libsycl.so.9" in needed
    system = (
        "libsycl.so.",
        "libstdc++.",
        "libgcc_s.",
        "libc.",
        "libm.",
        "ld-linux",
        "libpthread.",
        "libdl.",
    )
    assert [name for name in needed if not name.startswith(system)] == []
    assert all(path.startswith("$ORIGIN") for entry in core.dynamic(DT_RUNPATH) for path in entry.split(":"))


# Each in a process of its own: what is imported first decides which libsycl is mapped.
SCRIPT = """
import importlib, re, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
import numpy, xeflash
x = numpy.ones((1, 3, 2, 64), numpy.float32)
assert (xeflash.flash_attn_func(x, x, x) == 1).all()
print(*{m[0] for m in re.finditer(r"/\\S*/libsycl\\.so\\.\\d\\S*", open("/proc/self/maps").read())}, sep="\\n")
"""


@pytest.mark.parametrize(
    "order",
    few(["dpctl xeflash", "xeflash dpctl", "torch xeflash", "xeflash torch", "dpctl torch xeflash"], "torch xeflash"),
)
def test_one_libsycl_whatever_is_imported_first(order):
    for name in order.split():
        pytest.importorskip(name)
    run = subprocess.run([sys.executable, "-c", SCRIPT, *order.split()], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.split()) == 1, run.stdout


def test_core_imports_neither_torch_nor_numpy():
    script = "import sys, xeflash; print([m for m in ('torch', 'numpy', 'dpctl', 'rich') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300)
    assert run.stdout.strip() == "[]", run.stdout + run.stderr


def test_elf_reader_agrees_with_itself(core):
    """The reader can tell: the module's own entry point is defined, and nothing is both."""
    assert "PyInit__core" in core.symbols(defined=True)
    assert "PyInit__core" not in core.symbols(defined=False)
    assert any(symbol.startswith("Py") for symbol in core.symbols(defined=False))
