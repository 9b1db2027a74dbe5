"""Loading next to another libsycl: refused with the remedy, not left to crash."""

import pytest
from xeflash import _runtime


def test_another_major_in_the_process_is_refused(monkeypatch):
    monkeypatch.setattr(_runtime, "mapped_libsycl", lambda: {"libsycl.so.8": "/env/lib/libsycl.so.8.0.0"})
    with pytest.raises(ImportError, match=r"has loaded libsycl\.so\.8 \(/env/lib/.*pip install \"intel-sycl-rt"):
        _runtime.load()


def test_the_same_major_is_fine(monkeypatch):
    monkeypatch.setattr(_runtime, "mapped_libsycl", lambda: {"libsycl.so.9": "/env/lib/libsycl.so.9"})
    _runtime.load()
