"""The simulated machine without SYCL: load a native binary, put arrays into its memory, run its kernels.

machine = Machine("pvc")
module = machine.load(open("kernel.bin", "rb").read())
x = machine.array(np.arange(16, dtype=np.float32))
module.launch("scale", groups=(1, 1, 1), local=(16, 1, 1), arguments=[x, np.float32(2)])
print(x.view())
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xeflash.sim.library import load_library


class Fault(RuntimeError):
    """The reason why a launch stopped or a binary was refused."""


@dataclass(frozen=True)
class LocalMemory:
    """A kernel argument that is local memory of so many bytes."""

    bytes: int


def _check(library: ctypes.CDLL, text: int | None) -> None:
    if text:
        message = ctypes.string_at(text).decode(errors="replace")
        library.xesim_free(ctypes.c_void_p(text))
        raise Fault(message)


class Array:
    """A copy of a numpy array in device memory; freed with the object."""

    def __init__(self, library: ctypes.CDLL, like: np.ndarray[Any, Any]) -> None:
        """Allocates device memory and copies an array into it."""
        self._library = library
        self.shape, self.dtype = like.shape, like.dtype
        address, host = ctypes.c_uint64(), ctypes.c_void_p()
        self._bytes = like.nbytes
        _check(library, library.xesim_allocate(ctypes.c_uint64(like.nbytes), ctypes.byref(address), ctypes.byref(host)))
        self.address: int = address.value
        self._host = host.value or 0
        self.view()[...] = like

    def view(self) -> np.ndarray[Any, Any]:
        """Returns the memory itself as a numpy array; valid as long as this object."""
        buffer = (ctypes.c_uint8 * self._bytes).from_address(self._host)
        memory: np.ndarray[Any, Any] = np.frombuffer(buffer, self.dtype).reshape(self.shape)
        return memory

    def __del__(self) -> None:
        if getattr(self, "address", 0):
            self._library.xesim_release(ctypes.c_uint64(self.address))


class Module:
    """The kernels of one native binary."""

    def __init__(self, library: ctypes.CDLL, family: str, binary: bytes) -> None:
        """Reads the binary; raises Fault if it is not one for this family."""
        self._library = library
        self._handle = ctypes.c_void_p()
        _check(
            library,
            library.xesim_load(family.encode(), binary, ctypes.c_uint64(len(binary)), ctypes.byref(self._handle)),
        )

    def launch(
        self, kernel: str, groups: Sequence[int], local: Sequence[int], arguments: Sequence[Array | LocalMemory | Any]
    ) -> None:
        """Runs a kernel to its end.

        An argument is an Array, LocalMemory, bytes, or a numpy scalar.
        """
        data: list[bytes | None] = []
        sizes: list[int] = []
        for argument in arguments:
            if isinstance(argument, LocalMemory):
                data.append(None)
                sizes.append(argument.bytes)
                continue
            if isinstance(argument, Array):
                argument = argument.address.to_bytes(8, "little")
            elif not isinstance(argument, bytes):
                argument = np.asarray(argument).tobytes()
            data.append(argument)
            sizes.append(len(argument))
        n = len(data)
        pointers = (ctypes.c_char_p * max(n, 1))(*data)
        lengths = (ctypes.c_uint64 * max(n, 1))(*sizes)
        three = ctypes.c_uint32 * 3
        _check(
            self._library,
            self._library.xesim_launch(
                self._handle, kernel.encode(), three(*groups), three(*local), n, pointers, lengths
            ),
        )

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._library.xesim_unload(self._handle)


class Machine:
    """A simulated GPU of one family: "pvc", "bmg" or "dg2"."""

    def __init__(self, family: str) -> None:
        """Loads the simulator's library; no SYCL takes part."""
        self.family = family
        self._library = load_library()

    def load(self, binary: bytes) -> Module:
        """Reads a native binary."""
        return Module(self._library, self.family, binary)

    def array(self, like: np.ndarray[Any, Any]) -> Array:
        """Copies a numpy array to device memory."""
        return Array(self._library, np.ascontiguousarray(like))
