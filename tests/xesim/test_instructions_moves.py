"""mov: every pair of types, modifiers, saturation, literals, rounding modes."""

import itertools

from assembler import FLOATS, Ins, Operand, dst, imm
from instruction_maker import Maker, each_of

INTEGERS = ["b", "ub", "w", "uw", "d", "ud", "q", "uq"]
REAL = ["hf", "f", "df"]


def integers(m: Maker) -> None:
    for source, out in itertools.product(INTEGERS, INTEGERS):
        m.make(
            "mov",
            out,
            (source,),
            mods=("", "", "-", "abs", "-abs"),
            sat=True,
            most=16,
            cond=m.rng.choice([(), ("lt", "ne")]),
        )


def floats(m: Maker) -> None:
    for source, out in itertools.product(REAL, REAL):
        for _ in range(4):
            m.make("mov", out, (source,), mods=("", "", "-", "abs", "-abs"), sat=True)
    for source, out in [("f", "bf"), ("bf", "f"), ("bf", "bf"), ("bf", "f")] * 3:
        m.make("mov", out, (source,), strides=(1,))


def raw_copies(m: Maker) -> None:
    for kind in [*INTEGERS, *REAL, "bf"]:
        for _ in range(3):
            m.make("mov", kind, (kind,), most=16)


def integer_to_float(m: Maker) -> None:
    for mode in range(4):
        m.rounding(mode)
        for source, out in itertools.product(INTEGERS, REAL):
            m.make("mov", out, (source,), mods=("", "-"), most=16)


def integers_next_to_ties(m: Maker) -> None:
    """Rounding twice, to double on the way, would go wrong here."""
    for pool, kinds in (("q", ("q", "uq")), ("d", ("d", "ud"))):
        if not m.has(pool):
            continue
        width = 64 if pool == "q" else 32
        values = []
        for _ in range(10 * m.grf * 8 // width):
            kept = m.rng.choice([11, 24])  # bits of hf and f
            top = m.rng.randrange(kept + 1, width)
            tie = (m.rng.getrandbits(kept) | 1 << kept - 1) << top - kept | 1 << top - kept - 1
            values.append((tie + m.rng.choice([-1, 0, 1])) % (1 << width))
        m.put(m.first[pool], pool, values)
        for _ in range(6):
            for kind in kinds:
                m.make("mov", "f", (kind,), mods=("", "-"), most=16, literals=False)
                m.make("mov", "hf", (kind,), most=16, literals=False)


def float_to_integer(m: Maker) -> None:
    for source, out in itertools.product(REAL, INTEGERS):
        for _ in range(2):
            m.make("mov", out, (source,), mods=("", "-", "abs"), sat=True, most=16)


def narrowing_in_every_rounding_mode(m: Maker) -> None:
    for mode in range(4):
        m.rounding(mode)
        for source, out in [("f", "hf"), ("df", "f"), ("df", "hf"), ("f", "bf")] * 3:
            m.make("mov", out, (source,), mods=("", "-") if out != "bf" else ("",))


def narrow_formats(m: Maker) -> None:
    if m.family == "dg2":
        m.make("mov", "f", ("bf",))
        return
    for source, out in [("bf8", "hf"), ("f", "tf32")] * 6:
        m.make("mov", out, (source,), literals=False, predicate=False)


def literals(m: Maker) -> None:
    for kind in [*INTEGERS, *REAL]:
        if kind in ("b", "ub") or not m.has(kind):
            continue
        for out in (kind, "f" if kind in FLOATS else "d"):
            size, offset = m.lanes()
            m.emit(Ins("mov", size, m.result(out, size), (m.literal(kind),), offset))
    for packed, out in [("v", "w"), ("v", "d"), ("v", "f"), ("uv", "uw"), ("uv", "ud"), ("uv", "f"), ("vf", "f")] * 3:
        bits = m.rng.getrandbits(32)
        m.emit(Ins("mov", m.rng.choice([4, 8, 16]), m.result(out, 16), (imm(bits, packed),)))
    m.emit(Ins("add", 16, m.result("d", 16), (m.source("d", 16), imm(0x76543210, "v"))))
    m.emit(Ins("mul", 8, m.result("f", 8), (m.source("f", 8), imm(0x30B0_7080, "vf"))))


def every_restricted_float(m: Maker) -> None:
    for first in range(0, 256, 4):
        bits = sum(first + i << 8 * i for i in range(4))
        if first % 64 == 0:
            base = m.free(-(-64 * 4 // m.grf))
        element = first % 64
        per = m.grf // 4
        m.emit(Ins("mov", 4, Operand("f", base + element // per, element % per, (0, 32, 1)), (imm(bits, "vf"),)))


def flags_and_addresses(m: Maker) -> None:
    for number in range(m.flags):
        for half in (0, 1):
            m.emit(Ins("mov", 1, m.result("uw", 1), (Operand("uw", number, half, (0, 1, 0), file="f"),), no_mask=True))
        m.emit(Ins("mov", 1, m.result("ud", 1), (Operand("ud", number, 0, (0, 1, 0), file="f"),), no_mask=True))
    m.emit(Ins("mov", 1, Operand("uw", 0, 1, (0, 32, 1), file="f"), (imm(0x1234, "uw"),), no_mask=True))
    m.emit(Ins("mov", 1, Operand("ud", 1, 0, (0, 32, 1), file="f"), (m.source("ud", 1),), no_mask=True))
    m.emit(Ins("mov", 8, Operand("uw", 0, 0, (0, 32, 1), file="a"), (m.source("uw", 8, unit=True),), no_mask=True))
    m.emit(
        Ins(
            "add",
            4,
            Operand("uw", 0, 8, (0, 32, 1), file="a"),
            (m.source("uw", 4, unit=True), imm(7, "uw")),
            no_mask=True,
        )
    )
    m.emit(Ins("mov", 8, dst(m.free(2), "uw"), (Operand("uw", 0, 2, (1, 1, 0), file="a"),), no_mask=True))


CASES = [
    integers, floats, raw_copies, integer_to_float, integers_next_to_ties, float_to_integer, narrowing_in_every_rounding_mode,
    narrow_formats, literals, every_restricted_float, flags_and_addresses,
]  # fmt: skip

test_moves = each_of(CASES)
