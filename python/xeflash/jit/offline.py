"""Compilation of source to SPIR-V in child processes, which needs no device and can be cancelled at any time."""

from __future__ import annotations

import subprocess
import tempfile
import threading
from concurrent.futures import CancelledError
from pathlib import Path

from xeflash.jit.cache import Built
from xeflash.jit.kernel import KernelSource
from xeflash.jit.provide import CXX_HEADERS, HEADERS, INSTANTIATE_EARLY, PACKAGE
from xeflash.runtime import extension


class Compilers:
    """The compilers that run at the moment; threads start them, and one thread may end them all.

    What kernels begin with alike is parsed once, and kept in a folder that goes with this object.
    """

    def __init__(self) -> None:
        self._parsed = tempfile.TemporaryDirectory(prefix="xeflash-parsed-")
        self._running: set[subprocess.Popen[str]] = set()
        self._guard = threading.Lock()
        self._ended = False

    def compile(self, kernel: KernelSource) -> Built:
        """Compiles a kernel to SPIR-V; raises RuntimeError with the log, or CancelledError after `end`."""
        library = extension.in_distribution("intel-sycl-rt", "libsycl-jit.so")
        if library is None:
            raise RuntimeError(f"libsycl-jit.so was not found; mend it with: {extension.REMEDY}")
        with tempfile.TemporaryDirectory() as folder:
            source, output = Path(folder) / "source.cpp", Path(folder) / "kernel.spv"
            source.write_text(kernel.text)
            files = [str(PACKAGE / "bin" / "spirv"), str(library), str(source), str(output)]
            parse_once = (f"--persistent-auto-pch={self._parsed.name}", INSTANTIATE_EARLY)

            def compiler(header_options: tuple[str, ...]) -> Built:
                code, log = self._run([*files, *kernel.options, f"-I{HEADERS}", *header_options, *parse_once])
                if code != 0:
                    raise RuntimeError(f"{kernel.name} did not compile:\n{log}")
                return Built(output.read_bytes(), log)

            return CXX_HEADERS.compile(kernel.name, compiler)

    def end(self) -> None:
        """Ends the compilers that run, and starts no other."""
        with self._guard:
            self._ended = True
            for process in self._running:
                process.terminate()

    def _run(self, command: list[str]) -> tuple[int, str]:
        with self._guard:
            if self._ended:
                raise CancelledError
            pipe = subprocess.PIPE
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
            self._running.add(process)
        _, log = process.communicate()
        with self._guard:
            self._running.remove(process)
            if self._ended:
                raise CancelledError
        return process.returncode, log


def compile_offline(kernel: KernelSource) -> Built:
    """Compiles one kernel to SPIR-V."""
    return Compilers().compile(kernel)
