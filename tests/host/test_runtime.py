"""Loading where it cannot work, next to another libsycl or in a subinterpreter: refused, not left to crash or hang."""

import subprocess
import sys

import pytest
from xeflash import _runtime


def test_another_major_in_the_process_is_refused(monkeypatch):
    monkeypatch.setattr(_runtime, "mapped_libsycl", lambda: {"libsycl.so.8": "/env/lib/libsycl.so.8.0.0"})
    with pytest.raises(ImportError, match=r"has loaded libsycl\.so\.8 \(/env/lib/.*pip install \"intel-sycl-rt"):
        _runtime.load()


def test_the_same_major_is_fine(monkeypatch):
    monkeypatch.setattr(_runtime, "mapped_libsycl", lambda: {"libsycl.so.9": "/env/lib/libsycl.so.9"})
    _runtime.load()


SUBINTERPRETER = """
import sys
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
if sys.argv[1:]:
    import xeflash
    xeflash.attention  # the main interpreter has the extension
import_it = "try:\\n    from xeflash import _core\\nexcept ImportError as error:\\n    print('refused:', error)"
for _ in range(2):
    interpreters.run_string(interpreters.create(), import_it)
"""


@pytest.mark.parametrize("loaded", [(), ("loaded",)])
def test_a_subinterpreter_is_refused(loaded):
    done = subprocess.run([sys.executable, "-c", SUBINTERPRETER, *loaded], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("refused: xeflash must be imported in the main interpreter") == 2
