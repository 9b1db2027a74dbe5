"""Which simulated device runs which GPU test, where each test runs on one device only.

A kernel takes seconds to compile, so tests that share one run on one device, and the device follows from what a kernel
is compiled for: no test moves another. Cases without a cache are dealt by type and variant, so that a variant which they
have with all three types is on all devices. A cache's kernels have features of their own, one or two each: every
device runs each of them. Tests without such a case are dealt by the parameters that say what is compiled, else by
their function. A device's share is several parts, which pytest's processes can share out.
"""

import zlib
from collections.abc import Mapping

from caches import WINDOWS, CacheCase
from cases import VARIANTS, Case

DEVICES = ("pvc", "bmg", "dg2")
PARTS = 3 * len(DEVICES)
DTYPES = ("fp32", "bf16", "fp16")
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
        return list(WINDOWS).index(case.window) + case.dim // 8
    compiled = next((parameters[name] for name in COMPILED if name in parameters), None)
    key = function if compiled is None else f"{function.partition('::')[0]} {compiled}"
    assert " at 0x" not in key, f"{key} differs from process to process"
    return zlib.crc32(key.encode())


def device_of(part: int) -> str:
    return DEVICES[part % len(DEVICES)]
