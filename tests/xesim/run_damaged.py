"""Launches kernels with bits of their machine code flipped: `python run_damaged.py FAMILY BINARY COUNT`.

A program of its own, so that a crash is seen as one. Prints how many launches ran and how many were stopped.
"""

import random
import struct
import sys
from pathlib import Path

import numpy as np
from xeflash.sim.machine import Fault, Machine

KERNELS = ("scale", "total")


def code_ranges(binary: bytes) -> list[range]:
    """Where the kernels' code lies in the file."""
    (table,) = struct.unpack_from("<Q", binary, 40)
    size, count, names = struct.unpack_from("<HHH", binary, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", binary, table + i * size) for i in range(count)]
    found = []
    for section in sections:
        start = sections[names][4] + section[0]
        name = binary[start : binary.index(b"\0", start)].decode()
        if name.removeprefix(".text.") in KERNELS:
            found.append(range(section[4], section[4] + section[5]))
    return found


def main() -> None:
    family, binary, count = sys.argv[1], Path(sys.argv[2]).read_bytes(), int(sys.argv[3])
    machine = Machine(family)
    x, y = machine.array(np.zeros(256, np.float32)), machine.array(np.ones(256, np.float32))
    ranges = code_ranges(binary)
    random_of = random.Random(0)
    ran = stopped = 0
    for _ in range(count):
        damaged = bytearray(binary)
        for _ in range(random_of.choice((1, 1, 2, 8, 64))):
            damaged[random_of.choice(random_of.choice(ranges))] ^= 1 << random_of.randrange(8)
        module = machine.load(bytes(damaged))
        for kernel in KERNELS:
            try:
                module.launch(kernel, (1, 1, 1), (64, 1, 1), [x, y, np.float32(1.5), np.uint32(100)])
                ran += 1
            except Fault:
                stopped += 1
    print(ran, stopped)


if __name__ == "__main__":
    main()
