"""SGLang for the tests: its wheel from PyPI and what it imports, in folders that are laid over the tests' own packages.

    python tests/sglang_engine/sglang_environment.py    # makes the environment, and says how long

torch, Transformers, SYCL's runtime and xeflash are those of the Python that runs this: SGLang pins a newer torch, but runs
with this one. What else it imports is in locked.txt; stand_ins/ has names of torchvision and of SGLang's compiled kernels,
of which PyPI has none for CPUs. An environment lies in the folder that XEFLASH_TEST_SGLANG names, and is kept.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from engines import PYTHON, Unavailable, fetch, folder_of_locked  # noqa: E402

LOCKED = HERE / "locked.txt"
VERSION = "0.5.23"
FOLDER = "XEFLASH_TEST_SGLANG"


def provide(say: Callable[[str], None] = print) -> dict[str, str]:
    """Variables of processes that import SGLang: from the environment that is kept, or a new one; else Unavailable."""
    base = Path(os.environ[FOLDER]).absolute()
    others, engine = folder_of_locked(base, LOCKED), base / f"sglang-{VERSION}-{PYTHON}"
    if not engine.is_dir():
        fetch(engine, f"SGLang {VERSION}", say, f"sglang=={VERSION}")
    if not others.is_dir():
        fetch(others, "what SGLang imports", say, "--requirement", str(LOCKED))
    return {
        "PYTHONPATH": os.pathsep.join(map(str, (engine, others, HERE / "stand_ins"))),
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_PLUGINS": "xeflash",
        "TRITON_INTERPRET": "1",  # SGLang's kernels that make trees and accept guesses
        "TORCHDYNAMO_DISABLE": "1",
        "SGLANG_NATIVE_MOVE_KV_CACHE": "1",
        "HF_HUB_OFFLINE": "1",
    }


if __name__ == "__main__":
    try:
        print(provide()["PYTHONPATH"])
    except (KeyError, Unavailable) as error:
        sys.exit(f"sglang_environment.py: {FOLDER} must name a folder, and pip must find the packages: {error}")
