"""Which simulated device runs which GPU test, where each test runs on one device only.

The forward has most kernels, and each takes seconds to compile: its tests are dealt by type and head dim, so that one
device compiles a kernel, and each device has every type. Decode and caches have few kernels, which differ most between
devices: all devices get tests of each, in turn. A new test moves none of another function. A device's share is several
parts, which pytest's processes can share out.
"""

import zlib
from collections.abc import Iterable, Iterator

from cases import Case

DEVICES = ("pvc", "bmg", "dg2")
PARTS = 3 * len(DEVICES)
DTYPES = ("fp32", "bf16", "fp16")


def parts_of(tests: Iterable[tuple[str, object]], parts: int = PARTS) -> Iterator[int]:
    """1 ... parts for each test: its function, and its case if it has one."""
    turns: dict[object, int] = {}
    for function, case in tests:
        if isinstance(case, Case) and case.rows > 1:
            number = DTYPES.index(case.dtype) + case.dim // 8
        else:
            alike = function, getattr(case, "variant", "")
            number = turns.setdefault(alike, zlib.crc32(function.encode()))  # functions of one test begin anywhere
            turns[alike] += 1
        yield number % parts + 1


def device_of(part: int) -> str:
    return DEVICES[part % len(DEVICES)]
