"""Comparisons, selections, flags and predicates."""

import pytest
from assembler import FLOATS, Ins, Operand, assemble, execute, imm
from instruction_maker import FAMILIES, Maker, each_of

CONDITIONS = ("eq", "ne", "gt", "ge", "lt", "le")
KINDS = ["w", "uw", "d", "ud", "q", "uq", "hf", "f", "df"]


def compare(m: Maker) -> None:
    for kind in KINDS * 4:
        conditions = (*CONDITIONS, "un") if kind in FLOATS else CONDITIONS
        m.make("cmp", kind, (kind, kind), mods=("", "", "-", "abs"), cond=conditions, to_null=True, most=16)


def compare_mixed_integers(m: Maker) -> None:
    for a, b in [("d", "ud"), ("w", "ud"), ("uw", "d"), ("b", "uw"), ("d", "q")] * 5:
        m.make("cmp", m.rng.choice(["d", "ud"]), (a, b), cond=CONDITIONS, to_null=True, most=16)


def minimum_and_maximum(m: Maker) -> None:
    for kind in KINDS * 5:
        m.make("sel", kind, (kind, kind), mods=("", "", "-", "abs"), cond=("ge", "lt"), predicate=False, most=16)


def select_by_flag(m: Maker) -> None:
    for kind in KINDS * 4:
        if not m.has(kind):
            continue
        size, offset = m.lanes(most=16)
        pred = (*m.flag(size, offset), m.rng.random() < 0.5, "")
        mods = ("", "", "-", "abs")
        sources = (m.source(kind, size, mods=mods), m.source(kind, size, mods=mods))
        m.emit(Ins("sel", size, m.result(kind, size), sources, offset, m.rng.random() < 0.5, pred))


def conditional_select(m: Maker) -> None:
    for kind in ["f", "d", "ud", "w", "uw", "hf"] * 5:
        m.make("csel", kind, (kind,) * 3, cond=CONDITIONS, predicate=False, most=16, literals=False)


def predicates(m: Maker) -> None:
    functions = (
        [".any", ".all"] if m.family != "dg2" else [f".{f}{n}h" for f in ("any", "all") for n in (2, 4, 8, 16, 32)]
    )
    some = [0, 0xFFFFFFFF, 0xFFFF0000, 0x0F0F00FF, 1 << 17]
    for i in range(40):
        number = i % m.flags
        if i % 4 == 0:
            flag = Operand("ud", number, 0, (0, 32, 1), file="f")
            m.emit(Ins("mov", 1, flag, (imm(m.rng.choice(some), "ud"),), no_mask=True))
        size, offset = m.rng.choice([(8, 0), (16, 0), (16, 16), (32, 0), (8, 8)])
        func = m.rng.choice(functions)
        if m.family == "dg2" and int(func.strip(".anylh")) > size:
            func = ""
        pred = (number, 0, m.rng.random() < 0.5, func)
        m.emit(
            Ins("mov", size, m.result("ud", size, (1,)), (m.source("ud", size),), offset, m.rng.random() < 0.5, pred)
        )


def flags_of_inactive_lanes_stay(m: Maker) -> None:
    for kind in ["f", "d"] * 10:
        m.make("cmp", kind, (kind, kind), cond=("le", "ne"), to_null=True)


def flag_logic(m: Maker) -> None:
    def flag(kind: str, number: int, half: int, stride: bool) -> Operand:
        return Operand(kind, number, half, (0, 32, 1) if stride else (0, 1, 0), file="f")

    for op in ("and", "or", "xor", "not"):
        for _ in range(4):
            kind = m.rng.choice(["uw", "ud"])
            places = [(m.rng.randrange(m.flags), m.rng.randrange(2) if kind == "uw" else 0) for _ in range(3)]
            sources = [flag(kind, *place, False) for place in places[: 1 if op == "not" else 2]]
            m.emit(Ins(op, 1, flag(kind, *places[2], True), tuple(sources), no_mask=True))
            m.emit(Ins("mov", 1, m.result("ud", 1), (flag("ud", places[2][0], 0, False),), no_mask=True))


CASES = [
    compare, compare_mixed_integers, minimum_and_maximum, select_by_flag, conditional_select, predicates,
    flags_of_inactive_lanes_stay, flag_logic,
]  # fmt: skip

test_selections = each_of(CASES)


@pytest.mark.parametrize("family", FAMILIES)
def test_overflow_as_a_condition_is_refused(family):
    text = "add (8|M0) (ov)f0.0 r100.0<1>:d r10.0<1;1,0>:d r20.0<1;1,0>:d"
    fault = execute(Maker(family, 1).state, assemble(family, [Ins("add", 8, text=text)]))
    assert fault is not None and "condition modifier 8" in fault
