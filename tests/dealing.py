"""Which simulated device runs which GPU test, where each test runs on one device only.

A kernel takes seconds to compile, so tests that share one run on one device, and the device follows from what a kernel
is compiled for: no test moves another. Cases without a cache are dealt by type and variant, so that a variant which they
have with all three types is on all devices; cases with one by the place and the format of the cache, so that each place
is on all devices, and each format. Other tests of kernels are dealt by the parameters that say what is compiled, else by
their function; tests of what calls them, which is the same for each device, by their file. A device's share is several
parts, which pytest's processes can share out.
"""

import zlib
from collections.abc import Mapping

from caches import CacheCase
from cases import VARIANTS, Case

DEVICES = ("pvc", "bmg", "dg2")
PARTS = 3 * len(DEVICES)
DTYPES = ("fp32", "bf16", "fp16")
OF_KERNELS = ("attention/", "selftest/")
# Parameters of tests that say what is compiled; of several, the first says most.
COMPILED = ("case", "name", "form", "kernel", "variant", "dims", "dim", "dtype", "heads")


def part_of(test: str, parameters: Mapping[str, object], parts: int = PARTS) -> int:
    """1 ... parts, for the ID and the parameters of a test."""
    return number_of(test.partition("[")[0], parameters) % parts + 1


def number_of(function: str, parameters: Mapping[str, object]) -> int:
    case = parameters.get("case")
    if isinstance(case, Case):
        return DTYPES.index(case.dtype) + VARIANTS.index(case.variant)
    if isinstance(case, CacheCase):
        place = next(i for i, start in enumerate(("paged", "beam", "")) if case.place.startswith(start))
        form = ("e4m3", "int8", "e5m2", "same").index(case.format.partition(".")[0])
        return (place + form) % len(DEVICES) + len(DEVICES) * form
    file = function.partition("::")[0]
    if not any(folder in file for folder in OF_KERNELS):
        return zlib.crc32(file.encode())
    compiled = next((parameters[name] for name in COMPILED if name in parameters), None)
    key = function if compiled is None else f"{file} {compiled}"
    assert " at 0x" not in key, f"{key} differs from process to process"
    return zlib.crc32(key.encode())


def device_of(part: int) -> str:
    return DEVICES[part % len(DEVICES)]
