"""2D block loads, stores and prefetches of ESIMD kernels against slices of a padded numpy array."""

import re

import numpy as np
import pytest
from esimd import BLOCK2D_DEVICES, FOLDER, Kernels, last_record

ROWS, PITCH = 40, 256
SOURCE = (FOLDER / "block2d.cpp").read_text()
TYPES = {"u8": np.uint8, "u16": np.uint16, "u32": np.uint32, "u64": np.uint64}


def shapes(macro: str) -> list[tuple[str, str, int, int, int]]:
    """(kernel, type, width, height, blocks) of the shapes that the source names."""
    found = re.findall(rf"^{macro}\((u\d+), (\d+), (\d+)(?:, (\d+))?\)$", SOURCE, re.M)
    assert found
    result = []
    for kind, width, height, blocks in found:
        name = f"{macro.lower()}_{kind}_{width}x{height}x{blocks or 1}"
        result.append((name, kind, int(width), int(height), int(blocks or 1)))
    return result


def by_name(macro: str):
    return pytest.mark.parametrize("shape", shapes(macro), ids=[row[0] for row in shapes(macro)])


@pytest.fixture(scope="module", params=BLOCK2D_DEVICES)
def kernels(request) -> Kernels:
    return Kernels("block2d", request.param)


class Surface:
    """Random elements, of which only the first columns belong to the surface."""

    def __init__(self, kernels: Kernels, kind: str) -> None:
        self.kernels, self.kind = kernels, TYPES[kind]
        size = self.kind().itemsize
        self.width_bytes = 200
        self.columns = self.width_bytes // size
        rng = np.random.default_rng(3)
        raw = rng.integers(0, 256, (ROWS, PITCH), np.uint8)
        self.values = raw.view(self.kind)
        self.memory = kernels.array(self.values)
        self.step = max(1, 4 // size)  # what x must be a multiple of

    def arguments(self, x: int, y: int) -> tuple:
        sizes = np.uint32(self.width_bytes), np.uint32(ROWS), np.uint32(PITCH)
        return *sizes, np.int32(x), np.int32(y)

    def block(self, x: int, y: int, width: int, height: int) -> np.ndarray:
        """What the surface holds there, zeros around it."""
        edge = 128
        padded = np.zeros((ROWS + 2 * edge, self.columns + 2 * edge), self.kind)
        padded[edge : edge + ROWS, edge : edge + self.columns] = self.values[:, : self.columns]
        return padded[y + edge : y + edge + height, x + edge : x + edge + width]

    def positions(self, width: int, height: int, left: bool = True) -> list[tuple[int, int]]:
        """Inside, over each side and corner, beside each side; x where messages may start."""

        def at(x: int) -> int:
            return x // self.step * self.step

        middle, low = at(self.columns // 3), ROWS // 3
        inside = [(0, 0), (middle, low), (at(self.columns - width), max(0, ROWS - height))]
        over_x = [at(self.columns - (width + 1) // 2), at(self.columns - 1)] + [-at(width // 2 + self.step - 1)] * left
        over_y = [-(height // 2), 1 - height, ROWS - (height + 1) // 2, ROWS - 1]
        beside_x = [at(self.columns + self.step - 1), at(self.columns) + 64] + [-at(width + self.step - 1), -100] * left
        beside_y = [-height, -100, ROWS, ROWS + 60]
        sides = [(x, low) for x in over_x + beside_x] + [(middle, y) for y in over_y + beside_y]
        return inside + sides + [(x, y) for x in over_x for y in over_y]


def check_loads(kernels, shape, arrange, left=True):
    name, kind, width, height, blocks = shape
    surface = Surface(kernels, kind)
    for x, y in surface.positions(width * blocks, height, left):
        parts = [arrange(surface.block(x + b * width, y, width, height)) for b in range(blocks)]
        want = np.concatenate([part.ravel() for part in parts])
        # Rows that only fill up a VNNI dword may hold anything.
        known = np.tile(arrange(np.ones((height, width), surface.kind)).ravel() == 1, blocks)
        out = kernels.zeros(want.size, surface.kind)
        kernels.run(name, surface.memory, out, *surface.arguments(x, y))
        assert np.array_equal(out.view()[known], want[known]), f"at x = {x}, y = {y}"


@by_name("PLAIN")
def test_plain_load(kernels, shape):
    check_loads(kernels, shape, lambda block: block)


@by_name("VNNI")
def test_vnni_load(kernels, shape):
    def arrange(block: np.ndarray) -> np.ndarray:
        """4 / size rows side by side, element by element."""
        k = 4 // block.dtype.itemsize
        padded = np.zeros((-(-block.shape[0] // k) * k, block.shape[1]), block.dtype)
        padded[: block.shape[0]] = block
        return padded.reshape(-1, k, block.shape[1]).transpose(0, 2, 1)

    check_loads(kernels, shape, arrange)


@by_name("TRANSPOSED")
def test_transposed_load(kernels, shape):
    check_loads(kernels, shape, lambda block: block.T, left=shape[1] != "u64")


@by_name("STORE")
def test_store(kernels, shape):
    name, kind, width, height, _ = shape
    surface = Surface(kernels, kind)
    rng = np.random.default_rng(4)
    block = rng.integers(0, 256, (height, width * surface.kind().itemsize), np.uint8).view(surface.kind)
    source = kernels.array(block)
    for x, y in surface.positions(width, height):
        want = surface.values.copy()
        for row in range(max(0, -y), min(height, ROWS - y)):
            first, last = max(0, -x), max(0, min(width, surface.columns - x))
            if first < last:
                want[y + row, x + first : x + last] = block[row, first:last]
        surface.memory.view()[...] = surface.values
        kernels.run(name, surface.memory, source, *surface.arguments(x, y))
        assert np.array_equal(surface.memory.view(), want), f"at x = {x}, y = {y}"


@by_name("PREFETCH")
def test_prefetch_changes_nothing_and_counts_what_lies_inside(kernels, shape):
    name, kind, width, height, blocks = shape
    surface = Surface(kernels, kind)
    for x, y in surface.positions(width * blocks, height):
        kernels.run(name, surface.memory, *surface.arguments(x, y))
        assert np.array_equal(surface.memory.view(), surface.values)
        columns = max(0, min(surface.columns, x + width * blocks) - max(0, x))
        rows = max(0, min(ROWS, y + height) - max(0, y))
        record = last_record()
        assert record["prefetch_bytes"] == columns * rows * surface.kind().itemsize, f"at x = {x}, y = {y}"
        assert record["block2d_read"] == 0


def test_constant_distances(kernels):
    surface = Surface(kernels, "u16")
    for x, y in ((0, 0), (64, 16), (-10, 30), (90, -5)):
        out = kernels.zeros(5 * 128, np.uint16)
        kernels.run("neighbours", surface.memory, out, *surface.arguments(x, y))
        places = [(x, y), (x + 16, y), (x + 16, y - 8), (x + 32, y + 24), (x - 64, y - 16)]
        want = np.array([surface.block(*place, 16, 8) for place in places])
        assert np.array_equal(out.view().reshape(want.shape), want), f"at x = {x}, y = {y}"


def test_messages_are_2d_blocks(kernels):
    from xeflash.sim import binary

    for entry in binary.inspect(kernels.device, kernels.binary):
        name = entry["name"].removeprefix("__sycl_kernel_")
        assert any("block2d" in text for text in entry["all"]["messages"]), name
