"""Integer arithmetic: wraps, saturation, carries, products in pieces."""

import itertools

from assembler import Ins, Operand, acc, imm
from instruction_maker import Maker, each_of

SMALL = ["b", "ub", "w", "uw", "d", "ud"]
CONDITIONS = ("eq", "ne", "gt", "ge", "lt", "le")
MODS = ("", "", "-", "abs", "-abs")


def add(m: Maker) -> None:
    pairs = list(itertools.product(["w", "uw", "d", "ud", "q"], repeat=2))
    for a, b in pairs * 2:
        out = m.rng.choice(["w", "uw", "d", "ud", "d", "q"])
        m.make("add", out, (a, b), mods=MODS, sat=True, most=16)


def add_conditions(m: Maker) -> None:
    for kind in ["w", "uw", "d", "ud", "q"] * 6:
        m.make("add", kind, (kind, kind), mods=("", "-"), cond=CONDITIONS, to_null=True, most=16)


def bytes_and_words(m: Maker) -> None:
    for a, b in itertools.product(SMALL, SMALL):
        m.make("add", m.rng.choice(SMALL), (a, b), sat=True, most=16, strides=(1, 2))


def add3_and_mad(m: Maker) -> None:
    kinds = ["w", "uw", "d", "ud"]
    for _ in range(20):
        a, b, c, out = (m.rng.choice(kinds) for _ in range(4))
        m.make("add3", out, (a, b, c), mods=("", "-"), most=16)
        m.make("mad", out, (a, m.rng.choice(kinds), m.rng.choice(["w", "uw"])), mods=("", "-"), most=16)


def avg(m: Maker) -> None:
    for kind in SMALL * 4:
        m.make("avg", kind, (kind, kind), most=16)


def mul(m: Maker) -> None:
    for _ in range(12):
        for a, b, out in [("d", "w", "d"), ("ud", "uw", "ud"), ("w", "w", "d"), ("uw", "uw", "ud"), ("b", "b", "w")]:
            m.make("mul", out, (a, b), mods=("", "-"), sat=out != "w", most=16)


def dp4a(m: Maker) -> None:
    for a, b in itertools.product(["d", "ud"], repeat=2):
        for _ in range(5):
            m.make("dp4a", m.rng.choice(["d", "ud"]), (m.rng.choice(["d", "ud"]), a, b), most=16, literals=False)


def multiply_in_pieces(m: Maker) -> None:
    """32 x 32 bits as compilers write it: mul by the low word into acc0, then mach or macl."""
    options = ("AccWrEn",) if m.family == "dg2" else ()
    lanes = 16 if m.family != "dg2" else 8
    for kind in ["d", "ud"] * 6:
        a = m.source(kind, lanes, unit=True)
        b = m.source(kind, lanes, unit=True)
        low = Operand("uw", b.number, b.sub * 2, (2, 1, 0))
        target = Operand(kind, 0, 0, (0, 32, 1), file="acc")
        first = Ins("mul", lanes, target, (a, low), no_mask=True)
        m.emit(first)
        m.emit(Ins("mach", lanes, m.result(kind, lanes), (a, b), no_mask=True, options=options))
        m.emit(first)
        last = "macl" if m.family != "dg2" else "mach"
        m.emit(Ins(last, lanes, m.result(kind, lanes), (a, b), no_mask=True))
    # What lies in the accumulator now is not compared.
    m.emit(Ins("mov", lanes, Operand("ud", 0, 0, (0, 32, 1), file="acc"), (imm(0, "ud"),), no_mask=True))


def carries(m: Maker) -> None:
    options = ("AccWrEn",) if m.family == "dg2" else ()
    lanes = 16 if m.family != "dg2" else 8
    for op in ("addc", "subb"):
        for _ in range(10):
            m.make(op, "ud", ("ud", "ud"), most=lanes, options=options, predicate=False, literals=False)
            size = m.made[-1].size
            m.emit(Ins("mov", size, m.result("ud", size), (acc(0, "ud"),), no_mask=True))


def mac(m: Maker) -> None:
    lanes = 16 if m.family != "dg2" else 8
    for _ in range(8):
        a, b = m.source("w", lanes, unit=True), m.source("w", lanes, unit=True)
        start = Operand("d", 0, 0, (0, 32, 1), file="acc")
        m.emit(Ins("mov", lanes, start, (m.source("w", lanes, unit=True),), no_mask=True))
        m.emit(Ins("mac", lanes, m.result("d", lanes), (a, b), no_mask=True))


def accumulators_as_registers(m: Maker) -> None:
    lanes = 16 if m.family != "dg2" else 8
    for number in (0, 1, 2, 3):
        for kind in ("d", "ud"):
            target = Operand(kind, number, 0, (0, 32, 1), file="acc")
            m.emit(Ins("add", lanes, target, (m.source(kind, lanes), m.source(kind, lanes)), no_mask=True))
            m.emit(Ins("add", lanes, m.result(kind, lanes), (acc(number, kind), m.source(kind, lanes)), no_mask=True))


CASES = [
    add, add_conditions, bytes_and_words, add3_and_mad, avg, mul, dp4a, multiply_in_pieces, carries, mac,
    accumulators_as_registers,
]  # fmt: skip

test_integers = each_of(CASES)
