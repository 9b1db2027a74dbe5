"""What the CPU driver gets to compile. Two shapes of SPIR-V took it up to 15 s for a kernel that it now has in one."""

import struct
from collections.abc import Iterator

import pytest
from cover import few_rows
from xeflash.jit.kernel import render
from xeflash.jit.offline import compile_offline
from xeflash.tune.desc import Desc

TYPE_INT, TYPE_ARRAY, CONSTANT, FUNCTION_END = 21, 28, 43, 56


def instructions(spirv: bytes) -> Iterator[tuple[int, tuple[int, ...]]]:
    """(opcode, operands) of each."""
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
    at = 5
    while at < len(words):
        yield words[at] & 0xFFFF, words[at + 1 : at + (words[at] >> 16)]
        at += words[at] >> 16


def byte_arrays(spirv: bytes) -> list[int]:
    """Sizes of the arrays of bytes: what a memset became."""
    found = list(instructions(spirv))
    bytes_type = next((operands[0] for opcode, operands in found if opcode == TYPE_INT and operands[1] == 8), None)
    constants = {operands[1]: operands[2] for opcode, operands in found if opcode == CONSTANT}
    return [constants[o[2]] for opcode, o in found if opcode == TYPE_ARRAY and o[1] == bytes_type]


KERNELS = [
    ("cpu-generic", "flash_fwd", "float16", 96),
    ("cpu-avx512", "flash_fwd", "float32", 256),
    ("cpu-amx-bf16", "flash_fwd", "bfloat16", 256),
    ("cpu-avx512", "standard_attention", "float32", 64),
    ("cpu-avx512-bf16", "flash_decode", "bfloat16", 128),
    ("cpu-avx512", "append", "float16", 128),
]


@pytest.mark.parametrize(
    ("arch", "algorithm", "dtype", "dim"),
    few_rows(KERNELS, *KERNELS[2:5:2]),
)
def test_kernels_are_one_function_and_have_no_memset(arch, algorithm, dtype, dim):
    desc = Desc(algorithm, arch, dtype, dim, dim, 128 if algorithm == "flash_fwd" else 4)
    spirv = compile_offline(render(desc)).binary
    functions = sum(opcode == FUNCTION_END for opcode, _ in instructions(spirv))
    assert functions == len(desc.entries)
    assert max(byte_arrays(spirv), default=0) <= 1024
