"""Float arithmetic: one rounding from the exact result, in every rounding mode."""

import itertools

from assembler import Ins, Operand, acc
from instruction_maker import Maker, each_of

CONDITIONS = ("eq", "ne", "gt", "ge", "lt", "le")
MODS = ("", "", "-", "abs", "-abs")
TYPES = ["f", "hf", "df"]


def same_types(m: Maker) -> None:
    for op, kind in itertools.product(("add", "mul"), TYPES * 5):
        m.make(op, kind, (kind, kind), mods=MODS, sat=True)


def fused(m: Maker) -> None:
    for kind in TYPES * 8:
        m.make("mad", kind, (kind,) * 3, mods=("", "-"), sat=kind != "df")


def rounding_modes(m: Maker) -> None:
    for mode in range(4):
        m.rounding(mode)
        for kind in TYPES * 2:
            m.make("add", kind, (kind, kind), most=16)
            m.make("mul", kind, (kind, kind), most=16)
            m.make("mad", kind, (kind,) * 3, most=16)


def mixed_types(m: Maker) -> None:
    for op in ("add", "mul"):
        for a, b, out in [
            ("f", "hf", "f"),
            ("hf", "f", "hf"),
            ("f", "f", "hf"),
            ("hf", "hf", "f"),
            ("f", "hf", "hf"),
        ] * 3:
            m.make(op, out, (a, b), mods=("", "-"), most=16)


def bfloat(m: Maker) -> None:
    for op in ("add", "mul"):
        for a, b, out in [("f", "f", "bf"), ("bf", "f", "f"), ("bf", "f", "bf"), ("f", "bf", "f")] * 3:
            m.make(op, out, (a, b), most=16, literals=False, strides=(1,))
    for a, b, c, out in [("bf", "bf", "f", "f"), ("f", "bf", "bf", "bf"), ("bf", "f", "bf", "f")] * 3:
        m.make("mad", out, (a, b, c), most=16, literals=False)


def conditions(m: Maker) -> None:
    for kind in TYPES * 4:
        m.make("add", kind, (kind, kind), mods=("", "-"), cond=(*CONDITIONS, "un"), to_null=True)
        m.make("mul", kind, (kind, kind), cond=CONDITIONS)
    for kind in TYPES * 2:
        m.make("mov", kind, (kind,), mods=("-", "abs"), cond=CONDITIONS)


def to_integral(m: Maker) -> None:
    for op in ("rndd", "rndu", "rnde", "rndz"):
        for _ in range(8):
            m.make(op, "f", ("f",), mods=MODS, sat=True)
        m.make(op, "hf", ("hf",))


def fraction_part(m: Maker) -> None:
    # Moderate values: what x - floor(x) is next to 1 and at infinity is not described.
    pool = m.first["f"]
    values = [(127 + m.rng.randrange(-4, 10)) << 23 | m.rng.getrandbits(23) & ~0x3FF for _ in range(10 * m.grf // 4)]
    m.put(pool, "f", [value | m.rng.getrandbits(1) << 31 for value in values])
    for _ in range(10):
        m.make("frc", "f", ("f",), mods=MODS, literals=False)


def macro_multiply_add(m: Maker) -> None:
    lanes = {"dg2": 8}.get(m.family, 16)
    for _ in range(6):
        a, b, c = (m.source("f", lanes, unit=True) for _ in range(3))
        out = m.free(2)
        text = f"madm ({lanes}|M0) r{out}.mme1:f r{a.number}.nomme:f -r{b.number}.nomme:f r{c.number}.mme0:f"
        operands = (a, Operand("f", b.number, 0, (1, 1, 0), "-"), c)
        m.emit(Ins("madm", lanes, Operand("f", out, 0, (0, 32, 1)), operands, text=text))


def accumulators(m: Maker) -> None:
    for kind in TYPES:
        if not m.has(kind):
            continue
        lanes = 16 if kind != "df" else 8
        lanes = lanes // 2 if m.family == "dg2" else lanes
        for number in (0, 2):
            target = Operand(kind, number, 0, (0, 32, 1), file="acc")
            m.emit(Ins("mul", lanes, target, (m.source(kind, lanes), m.source(kind, lanes))))
            m.emit(Ins("add", lanes, m.result(kind, lanes), (acc(number, kind, mods="-"), m.source(kind, lanes))))
            m.emit(
                Ins(
                    "mad",
                    lanes,
                    m.result(kind, lanes, (1,)),
                    (acc(number, kind), m.source(kind, lanes, "src0,1 of 3"), m.source(kind, lanes, "src2 of 3")),
                )
            )
    target = Operand("f", 0, 0, (0, 32, 1), file="acc")
    lanes = 2 * m.grf // 4  # over acc0 and acc1
    m.emit(Ins("mul", lanes, target, (m.source("f", lanes), m.source("f", lanes))))
    m.emit(Ins("mov", lanes, m.result("f", lanes), (acc(0, "f"),)))


def multiply_accumulate(m: Maker) -> None:
    # Small integers: exact whether or not the product is rounded before the addition.
    pool = m.first["hf"]
    m.put(pool, "hf", [(15 + m.rng.randrange(6)) << 10 | m.rng.getrandbits(1) << 15 for _ in range(10 * m.grf // 2)])
    lanes = 16 if m.family != "dg2" else 8
    target = Operand("f", 0, 0, (0, 32, 1), file="acc")
    for _ in range(6):
        m.emit(Ins("mov", lanes, target, (m.source("hf", lanes, unit=True),)))
        widened = []
        for _ in range(2):
            out = m.result("f", lanes, (1,))
            m.emit(Ins("mov", lanes, out, (m.source("hf", lanes, unit=True),)))
            widened.append(Operand("f", out.number, out.sub, (1, 1, 0)))
        m.emit(Ins("mac", lanes, m.result("f", lanes), tuple(widened)))


def accumulator_write(m: Maker) -> None:
    if m.family != "dg2":
        return
    for op in ("add", "mul"):
        for _ in range(3):
            m.make(op, "f", ("f", "f"), options=("AccWrEn",), most=8, predicate=False)
            m.emit(Ins("mov", 8, m.result("f", 8), (acc(0, "f"),), no_mask=True))


CASES = [
    same_types, fused, rounding_modes, mixed_types, bfloat, conditions, to_integral, fraction_part,
    macro_multiply_add, accumulators, multiply_accumulate, accumulator_write,
]  # fmt: skip

test_floats = each_of(CASES, may_lack=True)
