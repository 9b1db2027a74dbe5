"""Runs flash-attention's own tests on xeflash's modules: `python tests/suites/flash_attention.py DIR`.

DIR is a checkout of flash-attention or a git directory. Its test files are copied aside with another device in them; the
module `flash_attn` is that of `xeflash flash-attn install`. Their tests need einops.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from pathlib import Path

import sampled
from xeflash.integrations import _flash_attn_package

GENERATIONS = {
    "2": {"test_flash_attn.py": "tests/test_flash_attn.py"},
    "3": {
        "test_flash_attn.py": "hopper/test_flash_attn.py",
        "test_util.py": "hopper/test_util.py",
        "padding.py": "hopper/padding.py",
    },
}
IMPORT_OF_2 = "from flash_attn.flash_attn_interface import _get_block_size_n, USE_TRITON_ROCM"
# Repeated by the ten thousand, or about the module for CUDA.
LEFT_OUT = "not race_condition and not generator_arg and not combine and not bw_compatibility"
# xeflash's probabilities are those of the softmax, where flash-attention's are of each block of keys.
END_OF_2 = """

def normalize_flash_attn_S(probabilities, *arguments, **named):
    return probabilities
"""
MODULE_OF_3 = """
from xeflash.integrations.flash_attn.flash_attn_3 import *

def flash_attn_combine(*arguments, **named):
    raise NotImplementedError("flash_attn_combine is not among xeflash's functions")

def get_scheduler_metadata(*arguments, **named):
    return None
"""


def text_of(source: Path, name: str) -> str:
    if (source / name).is_file():
        return (source / name).read_text()
    command = ["git", "-C", str(source), "show", f"HEAD:{name}"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def for_device(text: str, device: str) -> str:
    """A test file that puts its tensors there, and takes it for a GPU with everything."""
    text = re.sub(r"torch\.cuda\.get_device_capability\(\"cuda\"\)", "(9, 0)", text)
    text = re.sub(r"torch\.cuda\.get_device_properties\(\"cuda\"\)\.total_memory", "2**40", text)
    if IMPORT_OF_2 in text:
        text = text.replace(IMPORT_OF_2, "USE_TRITON_ROCM = False") + END_OF_2
    return re.sub(r"([\"'])cuda\1", repr(device), text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path, metavar="DIR")
    parser.add_argument("--generation", choices=GENERATIONS, default="2", help="3: the tests of hopper/")
    parser.add_argument("--device", default="cpu", help="cpu or xpu")
    options, words = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _flash_attn_package.install(folder / "packages")
        for file, place in GENERATIONS[options.generation].items():
            (folder / file).write_text(for_device(text_of(options.source, place), options.device))
        if options.generation == "3":
            (folder / "flash_attn_interface.py").write_text(MODULE_OF_3)
        wanted = [] if "-k" in words else ["-k", LEFT_OUT]
        return bool(sampled.run(folder, "test_flash_attn.py", *wanted, *words, path=(folder / "packages", folder)))


if __name__ == "__main__":
    raise SystemExit(main())
