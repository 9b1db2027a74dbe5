"""Regions, indirect addressing, operands that overlap, channel offsets."""

from assembler import Ins, Operand, imm
from instruction_maker import Maker, each_of


def pool_address(m: Maker, kind: str) -> int:
    return m.first[kind] * m.grf


def indirect_sources(m: Maker) -> None:
    for i in range(16):
        m.state.address[i] = pool_address(m, "d") + 4 * m.rng.randrange(4, 20)
    for kind in ["ud", "uw", "f", "ub", "d", "w"] * 4:
        size, offset = m.lanes(most=8)
        region = m.rng.choice([(1, 1, 0), (0, 1, 0), (4, 4, 1), (8, 4, 2), (2, 2, 1)])
        source = Operand(kind, region=region, indirect=(m.rng.randrange(16), 4 * m.rng.randrange(-4, 8)))
        m.emit(Ins("mov", size, m.result(kind, size), (source,), offset))
    for kind in ["f", "d"] * 4:
        source = Operand(kind, region=(1, 1, 0), indirect=(m.rng.randrange(16), 4 * m.rng.randrange(4)), mods="-")
        m.emit(Ins("add", 8, m.result(kind, 8), (source, m.source(kind, 8))))


def an_address_a_lane(m: Maker) -> None:
    """VxH: one address register for every `width` elements."""
    for i in range(16):
        m.state.address[i] = pool_address(m, "d") + 4 * m.rng.randrange(4, 40)
    for kind in ["ud", "uw", "f", "d"] * 4:
        width, h = m.rng.choice([(1, 0), (2, 1), (4, 1), (4, 2)])
        size = m.rng.choice([4, 8])
        k = m.rng.randrange(0, 16 - size // width + 1)
        source = Operand(kind, region=(0, width, h), indirect=(k, 4 * m.rng.randrange(-4, 4)), vxh=True)
        m.emit(Ins("mov", size, m.result(kind, size), (source,)))


def odd_offsets(m: Maker) -> None:
    """Byte addresses and immediate offsets need no alignment beyond the type's."""
    m.state.address[:] = [pool_address(m, "d") + 40 + i for i in range(16)]
    for _ in range(24):
        offset = m.rng.randrange(-16, 40)
        source = Operand("ub", region=(1, 1, 0), indirect=(m.rng.randrange(16), offset))
        size = m.rng.choice([1, 4, 8, 16])
        m.emit(Ins("mov", size, m.result("uw", size), (source,)))


def indirect_destinations(m: Maker) -> None:
    for i in range(16):
        m.state.address[i] = m.free(2) * m.grf
    for kind in ["ud", "uw", "f"] * 5:
        stride = m.rng.choice([1, 2])
        target = Operand(kind, region=(0, 32, stride), indirect=(m.rng.randrange(16), 4 * m.rng.randrange(8)))
        size, offset = m.lanes(most=4)
        m.emit(Ins("mov", size, target, (m.source(kind, size),), offset, m.rng.random() < 0.5))


def addresses_computed_by_the_program(m: Maker) -> None:
    base = pool_address(m, "ud")
    index = m.free(1)
    m.put(index, "uw", [m.rng.randrange(8) * 4 for _ in range(16)])
    target = Operand("uw", 0, 0, (0, 32, 1), file="a")
    m.emit(Ins("add", 8, target, (Operand("uw", index), imm(base, "uw")), no_mask=True))
    source = Operand("ud", region=(0, 1, 0), indirect=(0, 8), vxh=True)
    m.emit(Ins("mov", 8, m.result("ud", 8), (source,)))


def sources_are_read_before_results_are_written(m: Maker) -> None:
    for _ in range(12):
        kind = m.rng.choice(["d", "f", "w"])
        block = m.free(4)
        m.fill(block, kind, 4)
        region = m.rng.choice([(1, 1, 0), (0, 1, 0), (0, 4, 1), (2, 1, 0)])
        source = Operand(kind, block, m.rng.randrange(4), region)
        target = Operand(kind, block, m.rng.randrange(4), (0, 32, m.rng.choice([1, 2])))
        m.emit(Ins("add", m.rng.choice([8, 16]), target, (source, Operand(kind, block, 1, (0, 1, 0)))))


def regions_over_registers(m: Maker) -> None:
    for kind in ["ub", "uw", "ud", "f"] * 6:
        per = m.grf // m.source(kind, 1, unit=True).bytes
        size = 16
        source = Operand(
            kind, m.first[kind] + 1, per - 2 if per > 2 else 0, m.rng.choice([(1, 1, 0), (4, 4, 1), (2, 1, 0)])
        )
        m.emit(Ins("mov", size, m.result(kind, size), (source,), m.rng.choice([0, 16])))


def channel_offsets(m: Maker) -> None:
    step = 4 if m.family == "dg2" else 8
    for offset in range(0, 32, step):
        size = step
        pred = (0, 0, m.rng.random() < 0.5, "")
        m.emit(Ins("mov", size, m.result("d", size), (m.source("d", size),), offset, False, pred))
        m.emit(
            Ins("cmp", size, m.result("d", size), (m.source("d", size), m.source("d", size)), offset, cond=("lt", 1, 0))
        )


CASES = [
    indirect_sources, an_address_a_lane, odd_offsets, indirect_destinations, addresses_computed_by_the_program,
    sources_are_read_before_results_are_written, regions_over_registers, channel_offsets,
]  # fmt: skip

test_regions = each_of(CASES)
