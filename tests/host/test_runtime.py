"""Where it cannot work, next to another libsycl, in a subinterpreter, after a fork amid a call: refused, no hang."""

import subprocess
import sys

import pytest
from xeflash.runtime import extension


def test_another_major_in_the_process_is_refused(monkeypatch):
    monkeypatch.setattr(extension, "mapped_libsycl", lambda: {"libsycl.so.8": "/env/lib/libsycl.so.8.0.0"})
    with pytest.raises(ImportError, match=r"has loaded libsycl\.so\.8 \(/env/lib/.*pip install \"intel-sycl-rt"):
        extension.load()


def test_the_same_major_is_fine(monkeypatch):
    monkeypatch.setattr(extension, "mapped_libsycl", lambda: {"libsycl.so.9": "/env/lib/libsycl.so.9"})
    extension.load()


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


FORK = """
import os, signal, sys, threading, numpy, xeflash
small, large = (numpy.ones((1, 8, rows, 64), numpy.float32) for rows in (5, 1500))
xeflash.attention(small, small, small)
again = True
def call():
    while again:
        xeflash.attention(large, large, large)
thread = threading.Thread(target=call)
if sys.argv[1:]:
    thread.start()
    threading.Event().wait(0.3)
REFUSED = 3
for _ in range(20):  # the thread may be between two calls
    child = os.fork()
    if not child:
        signal.alarm(30)
        try:
            right = xeflash.attention(small, small, small).sum() == small.size
            os._exit(0 if right else 1)
        except RuntimeError as error:
            print(error, flush=True)
            os._exit(REFUSED)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0 or not sys.argv[1:]:
        break
again = False
thread.join() if sys.argv[1:] else None
xeflash.attention(small, small, small)
sys.exit(0 if status == (REFUSED if sys.argv[1:] else 0) else f"the child ended with {status}")
"""


@pytest.mark.parametrize("amid", [(), ("amid",)])
def test_a_fork_amid_a_call_of_another_thread_is_refused_in_the_child(amid):
    done = subprocess.run([sys.executable, "-c", FORK, *amid], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    if amid:
        assert done.stdout.startswith("attention: a process must not be forked while a call of another thread is under")
