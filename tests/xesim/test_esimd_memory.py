"""Gathers, scatters, block messages and atomics of ESIMD kernels against numpy."""

import re

import numpy as np
import pytest
from esimd import DEVICES, FOLDER, Kernels

TYPES = {"u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64}
LANES = re.findall(r"^LANES\((u\d+), (u\d+), (\d+), (\d+), (\d)\)$", (FOLDER / "memory.cpp").read_text(), re.M)


@pytest.fixture(scope="module", params=DEVICES)
def kernels(request) -> Kernels:
    return Kernels("memory", request.param)


def numbers(rng: np.random.Generator, count: int, kind) -> np.ndarray:
    return rng.integers(0, 256, (count, kind().itemsize), np.uint8).view(kind).ravel()


@pytest.mark.parametrize("lanes_on", ["all", "some", "none"])
@pytest.mark.parametrize("row", LANES, ids=["-".join(row) for row in LANES])
def test_gather_and_scatter(kernels, row, lanes_on):
    kind, offset, lanes, vector = TYPES[row[0]], TYPES[row[1]], int(row[2]), int(row[3])
    rng = np.random.default_rng(5)
    size = kind().itemsize
    values, before = numbers(rng, 1000, kind), numbers(rng, 1000, kind)
    places = rng.permutation(1000 // vector)[:lanes] * vector
    mask = {"all": (1 << lanes) - 1, "some": 0x2D5A59C3 & (1 << lanes) - 1, "none": 0}[lanes_on]
    source, target = kernels.array(values), kernels.array(before)
    seen = kernels.zeros(lanes * vector, kind)
    # Lanes that are off may point anywhere.
    on = (mask >> np.arange(lanes) & 1).astype(bool)
    offsets = np.where(on, places * size, 1 << 30).astype(offset)
    kernels.run("lanes_" + "_".join(row), source, target, kernels.array(offsets), seen, np.uint32(mask))
    each = places[:, None] + np.arange(vector)
    want = before.copy()
    want[each[on]] = values[each[on]]
    assert np.array_equal(target.view(), want)
    # Component v of lane n is element v * lanes + n.
    wanted = np.where(on, values[each].T, kind(77))
    assert np.array_equal(seen.view().reshape(vector, lanes), wanted)


def sizes_of(kernel: str, dg2: bool) -> list[int]:
    """The sizes that the kernel's source names."""
    text = (FOLDER / "memory.cpp").read_text()
    found = re.findall(rf"XE_KERNEL {kernel}\(.*?copy_\w+<u\d+, ([\d, ]+)>", text, re.S)
    return [int(word) for word in found[0 if dg2 else -1].split(",")]


@pytest.mark.parametrize(
    "kernel", ["blocks_u8", "blocks_u16", "blocks_u32", "blocks_u64", "cached_blocks_u32", "cached_blocks_u64"]
)
def test_blocks(kernels, kernel):
    kind = TYPES[kernel.split("_")[-1]]
    rng = np.random.default_rng(6)
    step = 16 // kind().itemsize
    sizes = sizes_of(kernel, kernels.device == "dg2")
    total = sum(-(-size // step) * step for size in sizes)
    values = numbers(rng, total, kind)
    target = kernels.zeros(total, kind)
    kernels.run(kernel, kernels.array(values), target)
    want, at = np.zeros(total, kind), 0
    for size in sizes:
        want[at : at + size] = values[at : at + size]
        at += -(-size // step) * step
    assert np.array_equal(target.view(), want)


def test_prefetch_of_nothing_is_no_fault(kernels):
    source, target = kernels.array(np.array([5], np.uint32)), kernels.zeros(1, np.uint32)
    kernels.run("prefetches", source, target)
    assert target.view()[0] == 5


# ---- atomics ------------------------------------------------------------------------------------

UNSIGNED = ["add", "sub", "inc", "dec", "min", "max", "cas", "and", "or", "xor", "load", "store"]
FLOATS = ["add", "sub", "min", "max", "cas"]
ATOMICS = {
    "u16": (np.uint16, UNSIGNED),
    "u32": (np.uint32, UNSIGNED),
    "u64": (np.uint64, UNSIGNED),
    "exchange": (np.uint32, ["store"]),
    "s16": (np.int16, ["min", "max"]),
    "s32": (np.int32, ["min", "max"]),
    "s64": (np.int64, ["min", "max"]),
    "f16": (np.float16, FLOATS),
    "f32": (np.float32, FLOATS),
    "f64": (np.float64, FLOATS),
}


def combine(op: str, old, a, b):
    one = old.dtype.type(1)
    results = {
        "add": lambda: old + a,
        "sub": lambda: old - a,
        "inc": lambda: old + one,
        "dec": lambda: old - one,
        "min": lambda: min(old, a),
        "max": lambda: max(old, a),
        "cas": lambda: b if old == a else old,
        "and": lambda: old & a,
        "or": lambda: old | a,
        "xor": lambda: old ^ a,
        "load": lambda: old,
        "store": lambda: a,
    }
    return results[op]()


@pytest.fixture(scope="module", params=DEVICES)
def atomics(request) -> Kernels:
    return Kernels("atomics", request.param)


@pytest.mark.parametrize("mask", [0xFFFF, 0x5A37])
@pytest.mark.parametrize("meeting", [False, True], ids=["apart", "meeting"])
@pytest.mark.parametrize("name", ATOMICS)
@pytest.mark.parametrize("space", ["global", "slm"])
def test_atomics(atomics, space, name, meeting, mask):
    if not atomics.has(f"{space}_{name}"):
        pytest.skip(f"{atomics.device} has no {space}_{name}")
    kind, operations = ATOMICS[name]
    rng = np.random.default_rng(7)
    if name[0] == "f":
        memory, operands = (rng.integers(-40, 40, n).astype(kind) / kind(4) for n in (16 * len(operations), 32))
    else:
        memory, operands = numbers(rng, 16 * len(operations), kind), numbers(rng, 32, kind)
    # Lanes that meet go in ascending order.
    places = rng.integers(0, 5, 16) if meeting else rng.permutation(16)
    a, b = operands[:16], operands[16:]
    want, old = memory.copy(), np.zeros((len(operations), 16), kind)
    with np.errstate(over="ignore"):
        for i, op in enumerate(operations):
            if op == "cas":  # every other lane compares with what is there
                want[16 * i + places[::2]] = memory[16 * i + places[::2]] = a[::2]
            for lane in np.flatnonzero(mask >> np.arange(16) & 1):
                at = 16 * i + places[lane]
                old[i, lane] = want[at]
                want[at] = combine(op, want[at], a[lane], b[lane])
    changed = atomics.array(memory)
    seen = atomics.zeros(old.size, kind)
    offsets = atomics.array((places * kind().itemsize).astype(np.uint32))
    atomics.run(f"{space}_{name}", changed, offsets, atomics.array(operands), seen, np.uint32(mask))
    assert np.array_equal(seen.view().reshape(old.shape), old)
    assert np.array_equal(changed.view(), want)
