"""Runs SYCL programs on simulated devices: each in a process of its own, because a process looks for devices once."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from xeflash.sim import library_path

TESTS = Path(__file__).parent
PREAMBLE = "import os, sys\nimport xeflash.sim as sim\nsim.enable(*{devices!r}, check={check!r})\n"


def find_sycl() -> tuple[Path, Path]:
    """Headers and libraries of intel-sycl-rt in this environment."""
    include, lib = Path(sys.prefix) / "include", Path(sys.prefix) / "lib"
    if not (include / "sycl" / "sycl.hpp").exists() or not (lib / "libsycl.so").exists():
        pytest.skip("intel-sycl-rt with its headers is not in this environment")
    return include, lib


class Simulated:
    """How the tests start programs."""

    def __init__(self, library: Path, cache: Path) -> None:
        self.library, self.cache = library, cache

    def environment(self, adapter: int | None = None, **more: str) -> dict[str, str]:
        mine = ("XEFLASH_SIM", "SYCL_UR_USE_LEVEL_ZERO_V2", "ONEAPI_DEVICE_SELECTOR", "UR_L0_DISABLE_USM_ALLOCATOR")
        kept = {name: value for name, value in os.environ.items() if name not in mine and name != "XEFLASH_SIM_CHECK"}
        kept |= {"XEFLASH_SIM_LIBRARY": str(self.library), "XEFLASH_CACHE_DIR": str(self.cache)}
        if adapter is not None:
            kept["SYCL_UR_USE_LEVEL_ZERO_V2"] = str(adapter)
        return kept | more

    def start(self, command: list[str], environment: dict[str, str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(
        self, command: list[str], environment: dict[str, str], status: int | None = 0
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )
        if status is not None and done.returncode != status:
            pytest.fail(f"{command[0]} ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
        return done

    def python(
        self,
        code: str,
        *devices: str,
        check: str | None = None,
        adapter: int | None = None,
        status: int | None = 0,
        **more: str,
    ) -> subprocess.CompletedProcess[str]:
        """Runs Python code, after enable() if devices are named."""
        text = PREAMBLE.format(devices=devices, check=check) if devices else "import os, sys\n"
        return self.run([sys.executable, "-c", text + code], self.environment(adapter, **more), status)

    def program(
        self,
        path: Path,
        arguments: list[str],
        devices: str,
        check: str | None = None,
        adapter: int | None = None,
        status: int | None = 0,
        **more: str,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a C++ SYCL program, which knows nothing of the simulator."""
        more |= {
            "XEFLASH_SIM": devices,
            "ZEL_LIBRARY_PATH": str(self.library.parent),
            "UR_L0_DISABLE_USM_ALLOCATOR": "1",
            "UR_L0_QUEUE_SYNCHRONIZE_NON_BLOCKING": "0",
        }
        if check is not None:
            more["XEFLASH_SIM_CHECK"] = check
        return self.run([str(path), *arguments], self.environment(adapter, **more), status)


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    return Simulated(library_path(), tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session")
def sycl_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/xesim/sycl_program.cpp, built with g++."""
    include, lib = find_sycl()
    program = tmp_path_factory.mktemp("program") / "sycl_program"
    command = ["g++", "-std=c++17", "-w", "-DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING", f"-I{include}",
               str(TESTS / "sycl_program.cpp"), "-o", str(program), f"-L{lib}", "-lsycl", f"-Wl,-rpath,{lib}"]  # fmt: skip
    subprocess.run(command, check=True)
    return program
