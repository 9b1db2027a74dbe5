"""The ratchet: tests of the default set ask for kernels of kernel_list.txt only, and that list may only get shorter.

A kernel costs a second on the CPU and three on a simulated GPU, in every run of everybody. So each test is held to the list
while it runs, alone or among others. A name says what a kernel is compiled for, without what the machine chooses:
instructions, heights of tiles, threads. Behind each name stand the files of tests that ask for it.

`python tests/kernel_list.py FOLDER...` writes the list anew from journals of complete runs (XEFLASH_KEEP_JOURNALS)
in an installation that README's test command makes: an editable one skips tests/jit/test_without_compiler.py, whose kernels
are of the list, too. A test that is marked `release` takes what a package carries, and is not held to the list; nor are the
checks of SGLang, whose packages complete runs do without.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_suffix(".txt")
CORES = 2  # of the machine where it was written: with more, a call may be shared out otherwise, by other kernels
LIMITS = {"CPU": 304, "GPUs": 250}  # they may fall; for another kernel, take one out

_ISA = re.compile(r"^cpu-(?:amx-bf16|avx512-bf16|avx512|generic)-")
# t: threads, q: rows, r n k: sizes of a product, p: products at a time.
_SIZES = re.compile(r"(?<=\d)t\d+(k\d+)?(?=-|$)|-q\d+(?=-|$)|-r\d+n\d+(k\d+)?m?(t\d+)?(?=-|$)|-p\d+(?=-|$)")
_PEAK = re.compile(r"^cpu-peak-.*")  # those of the types that a CPU multiplies
# AMX takes two passes where other CPUs take one.
_TWO_PASSES = re.compile(r"^cpu-amx-bf16-flash_bwd_d(?:q|kv)-bfloat16")


def listed_name(kernel: str) -> str:
    return _PEAK.sub("cpu-peak", _SIZES.sub("", _ISA.sub("cpu-", kernel)))


def device_of(name: str) -> str:
    return "CPU" if name.startswith("cpu-") else "GPUs"


@functools.cache
def listed() -> dict[str, list[str]]:
    """Files of tests by the name of a kernel that they ask for."""
    return {name: files for name, *files in (line.split() for line in LIST.read_text().splitlines())}


def unlisted(kernels: Collection[str]) -> list[str]:
    one_pass = (_TWO_PASSES.sub("cpu-flash_bwd-bfloat16", kernel) for kernel in kernels)
    both = ((listed_name(kernel), listed_name(other)) for kernel, other in zip(kernels, one_pass, strict=True))
    return sorted({name for name, other in both if name not in listed() and other not in listed()})


def asked(folder: Path) -> Iterator[tuple[str, str]]:
    """(test, kernel) of the journals in a folder."""
    for path in folder.glob("*.jsonl"):
        test = ""
        for text in path.read_text().splitlines():
            line = json.loads(text)
            test = line.get("test", test)
            if line.get("device"):  # in a program that the test started, or for the first time
                yield test, line["kernel"]
            yield from ((test, kernel) for kernel in line.get("used", ()))


def main(folders: list[str]) -> None:
    files: dict[str, set[str]] = defaultdict(set)
    for folder in folders:
        for test, kernel in asked(Path(folder)):
            files[listed_name(kernel)].add(test.partition("::")[0].removeprefix("tests/"))
    if not files:
        sys.exit(f"kernel_list: the folders must have journals of a run, got {' '.join(folders) or 'no folder'}")
    LIST.write_text("".join(f"{name} {' '.join(sorted(files[name]))}\n" for name in sorted(files)))
    for device, limit in LIMITS.items():
        print(f"{device}: {sum(device_of(name) == device for name in files)} kernels, at most {limit}")


if __name__ == "__main__":
    main(sys.argv[1:])
else:
    import pytest
    import run_report

    @pytest.fixture(autouse=True)
    def kernels_are_listed(request: pytest.FixtureRequest) -> Iterator[None]:
        yield
        beyond = any(request.node.get_closest_marker(name) for name in ("wide", "long", "release"))
        beyond = beyond or "sglang_engine" in request.node.path.parts
        if beyond or os.cpu_count() != CORES:
            return
        others = unlisted(run_report.kernels_of_this_test())
        option = request.config.getoption
        if option("--sim") and not option("--dealt"):  # a device that runs all asks for what others are dealt, too
            others = [name for name in others if device_of(name) == "CPU"]
        if others:
            pytest.fail(
                f"this test asks for {len(others)} kernels that are not in {LIST.name}: {', '.join(others)}. Take shapes "
                "of other tests (head dim 64, one tile, fp32 on the CPU, bf16 on GPUs), mark it wide, or change the list",
                pytrace=False,
            )
