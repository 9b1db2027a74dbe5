"""The simulated address space, without SYCL: exact ends, no early reuse, messages that name the allocation."""

import ctypes
import threading

import pytest
from toolbox import function, library


class Space:
    def __init__(self) -> None:
        pointer, number = ctypes.POINTER, ctypes.c_uint64
        self._allocate = function("xesim_allocate", number, pointer(number), pointer(ctypes.c_void_p))
        self._release = function("xesim_release", number)
        self._holds = library().xesim_holds
        self._holds.argtypes = [number, number]
        self._explain = library().xesim_explain
        self._explain.argtypes, self._explain.restype = [number, number], ctypes.c_char_p

    def allocate(self, size: int) -> tuple[int, int]:
        address, host = ctypes.c_uint64(), ctypes.c_void_p()
        error = self._allocate(size, ctypes.byref(address), ctypes.byref(host))
        assert error is None, error
        return address.value, host.value

    def release(self, address: int) -> str:
        return (self._release(address) or b"").decode()

    def holds(self, address: int, size: int) -> bool:
        return bool(self._holds(address % 2**64, size))

    def explain(self, address: int, size: int = 1) -> str:
        return self._explain(address % 2**64, size).decode()


@pytest.fixture
def space() -> Space:
    return Space()


@pytest.mark.parametrize("size", [1, 63, 4096, 4097, 1 << 20])
def test_ends_are_exact(space, size):
    address, _ = space.allocate(size)
    assert space.holds(address, size)
    assert space.holds(address + size - 1, 1)
    assert not space.holds(address, size + 1)
    assert not space.holds(address + size, 1)
    assert not space.holds(address - 1, 1)
    assert not space.holds(address + size - 1, 2**64 - 1)
    assert (
        space.explain(address + size) == f"is right behind the end of the {size}-byte device allocation at {address:#x}"
    )
    assert space.explain(address - 8).startswith("is ")
    assert "1 bytes past the end" in space.explain(address + size - 1, 2)
    assert space.release(address) == ""


def test_freed_memory_is_known_and_not_reused(space):
    seen = set()
    for _ in range(300):
        address, _ = space.allocate(5000)
        assert address not in seen
        seen.add(address)
        assert space.release(address) == ""
        assert not space.holds(address, 1)
    assert all("which was freed" in space.explain(address + 4999) for address in seen)
    assert "not the start of a live allocation" in space.release(min(seen))


def test_wrong_addresses_are_explained(space):
    address, _ = space.allocate(100)
    assert "null pointer" in space.explain(0)
    assert "null pointer" in space.explain(64)
    assert "not USM memory" in space.explain(2**64 - 1)
    assert "not USM memory" in space.explain(id(space))
    assert "not the start" in space.release(address + 1)
    assert "not the start" in space.release(id(space))
    assert space.release(address) == ""


def test_large_allocations_are_sparse(space):
    size = 64 << 30
    address, host = space.allocate(size)
    ctypes.c_uint8.from_address(host + size - 1).value = 5
    assert ctypes.c_uint8.from_address(host + size - 1).value == 5
    assert ctypes.c_uint8.from_address(host + size // 2).value == 0
    assert space.holds(address, size)
    assert space.release(address) == ""


def test_impossible_sizes_are_refused(space):
    address, host = ctypes.c_uint64(), ctypes.c_void_p()
    for size in (2**64 - 1, 2**63, 1 << 46):
        assert b"bytes" in space._allocate(size, ctypes.byref(address), ctypes.byref(host))


def test_many_threads(space):
    wrong = []

    def work(seed: int) -> None:
        mine = []
        for i in range(200):
            size = (seed * 7919 + i * 104729) % 100000 + 1
            address, _ = space.allocate(size)
            mine.append((address, size))
            if i % 3 == 0:
                space.release(mine.pop(0)[0])
            if not all(space.holds(a, n) and not space.holds(a, n + 1) for a, n in mine[-5:]):
                wrong.append(address)
        for address, _ in mine:
            space.release(address)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
