"""Tests that need too much memory are skipped, by a line that says so."""

import pytest
from room import need_memory
from xeflash.bench import environ


def test_what_needs_most_of_free_memory_is_skipped(monkeypatch):
    monkeypatch.setattr(environ, "available_memory", lambda device: 10e9)
    need_memory(6e9)
    with pytest.raises(pytest.skip.Exception, match=r"needs about 6.1 GB, 10.0 GB are free, of which 60% are used"):
        need_memory(6.1e9)
    monkeypatch.setattr(environ, "available_memory", lambda device: None)
    need_memory(1e15)
