"""Which simulated device runs which GPU test, where each test runs on one device only, and which shard runs which test.

A kernel takes seconds to compile, so tests that share one run on one device and in one shard, and both follow from what a
kernel is compiled for: no test moves another. Cases without a cache, and gradients, are dealt by type and variant, so that
a variant which they have with all three types is on all devices; cases with one by the place and the format of the cache,
so that each place is on all devices, and each format. Other tests of kernels are dealt by the parameters that say what is
compiled, else by their function; tests of what calls them, which is the same for each device, by their file.
"""

import re
import zlib
from collections.abc import Mapping

from axes import VARIANTS
from xeflash.selftest.attention.spec import Spec

DEVICES = ("pvc", "bmg", "dg2")
DTYPES = ("fp32", "bf16", "fp16")
OF_KERNELS = ("attention/", "products/", "selftest/")
# Parameters of tests that say what is compiled; of several, the first says most.
COMPILED = ("case", "name", "form", "kernel", "variant", "dims", "dim", "dtype", "heads")


def device_of(test: str, parameters: Mapping[str, object]) -> str:
    """For the ID and the parameters of a test."""
    return DEVICES[(number_of(test.partition("[")[0], parameters) + 1) % len(DEVICES)]


def number_of(function: str, parameters: Mapping[str, object]) -> int:
    case = parameters.get("case")
    if isinstance(case, Spec) and case.place:
        place = next(i for i, start in enumerate(("paged", "beam", "")) if case.place.startswith(start))
        return place + ("e4m3", "int8", "e5m2", "").index(case.format.partition(".")[0])
    if isinstance(case, Spec):
        words = [word for word in case.variant.split("+") if not word.startswith(("chunk", "documents"))]
        variant = "+".join(kernel_of(word) for word in words) or "plain"
        known = variant in VARIANTS and not case.grad
        return DTYPES.index(case.dtype) + (VARIANTS.index(variant) if known else sum(variant.encode()))
    file = function.partition("::")[0]
    if not any(folder in file for folder in OF_KERNELS):
        return zlib.crc32(file.encode())
    compiled = compiled_for(parameters)
    assert " at 0x" not in compiled, f"{compiled} differs from process to process"
    return zlib.crc32((f"{file} {compiled}" if compiled else function).encode())


def kernel_of(variant: str) -> str:
    """What a variant compiles: the same for all blocks."""
    return re.sub(r"(blocks)=[^+]*", r"\1", variant)


def compiled_for(parameters: Mapping[str, object]) -> str:
    """What a test's parameters say of its kernels, or nothing."""
    return str(next((parameters[name] for name in COMPILED if name in parameters), ""))


def shard_of(test: str, parameters: Mapping[str, object], shards: int) -> int:
    """1 ... shards. Of cases, those with one type, size and variant share one; of random calls each is alone."""
    case = parameters.get("case")
    if isinstance(case, Spec):
        what = f"{case.place} {case.format}" if case.place else f"{case.dim_v} {kernel_of(case.variant)}"
        key = f"{case.dtype} {case.dim} {what}"
    else:
        compiled = compiled_for(parameters)  # a function has no name that all processes know
        key = f"{test.partition('::')[0]} {compiled}" if compiled and " at 0x" not in compiled else test
    return zlib.crc32(key.encode()) % shards + 1
