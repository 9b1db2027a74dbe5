"""Bitwise logic, shifts, rotations, bit counts and fields."""

import itertools

from instruction_maker import Maker, each_of

NUMBERS = ["w", "uw", "d", "ud"]
CONDITIONS = ("eq", "ne")


def two_sources(m: Maker) -> None:
    for op in ("and", "or", "xor"):
        for a, b in [*itertools.product(NUMBERS, NUMBERS), ("q", "q"), ("uq", "uq"), ("b", "ub")]:
            cond = m.rng.choice([(), CONDITIONS])
            out = "w" if a == "b" else a if cond else m.rng.choice([a, b, "ud"])
            m.make(op, out, (a, b), mods=("", "", "~"), cond=cond, to_null=True, most=16)


def complement(m: Maker) -> None:
    for kind in NUMBERS * 6 + ["q", "uq"] * 3:
        m.make("not", kind, (kind,), mods=("", "~"), cond=m.rng.choice([(), CONDITIONS]), most=16)


def any_function_of_three(m: Maker) -> None:
    for table in range(0, 256, 5):
        kind = m.rng.choice(["ud", "d", "uw", "w"])
        m.make("bfn", kind, (kind,) * 3, sub_op=f"0x{table:02X}", most=16)


def shifts(m: Maker) -> None:
    for op, kinds in (("shl", NUMBERS), ("shr", ["ud", "uw"]), ("asr", ["d", "w"])):
        for value, count in itertools.product(kinds, ["ud", "uw", "w"]):
            for _ in range(3):
                m.make(op, m.rng.choice([value, "ud"]), (value, count), most=16)


def wide_shifts(m: Maker) -> None:
    for op, kind in (("shl", "q"), ("shl", "uq"), ("shr", "uq"), ("asr", "q")):
        for count in ("ud", "uw", "q"):
            for _ in range(3):
                m.make(op, kind, (kind, count), most=16)
    for _ in range(6):
        m.make("shl", "q", ("d", "w"), most=16)


def shift_conditions(m: Maker) -> None:
    for _ in range(8):
        m.make("shr", "ud", ("ud", "uw"), cond=("eq", "ne"), most=16)
        m.make("asr", "d", ("d", "uw"), cond=("eq", "ne", "lt", "ge"), most=16)
    for _ in range(6):
        m.make("shl", "d", ("d", "uw"), sat=True, most=16)


def rotations(m: Maker) -> None:
    for op, kind in itertools.product(("rol", "ror"), ("ud", "uw", "uq")):
        for _ in range(6):
            m.make(op, kind, (kind, kind if kind != "uq" else "uw"), most=16)


def bit_counts(m: Maker) -> None:
    for _ in range(8):
        m.make("lzd", "ud", ("ud",))
        m.make("cbit", "ud", ("ud",))
        m.make("cbit", "ud", ("uw",), most=16)
        m.make("bfrev", "ud", ("ud",))
        m.make("fbl", "ud", ("ud",))
        m.make("fbh", "ud", ("ud",))
        m.make("fbh", "ud", ("d",))


def bit_fields(m: Maker) -> None:
    for kind in ("d", "ud") * 8:
        m.make("bfe", kind, (kind,) * 3, literals=False, most=16)
        m.make("bfi1", kind, (kind,) * 2, literals=False, most=16)
        m.make("bfi2", kind, (kind,) * 3, literals=False, most=16)


CASES = [
    two_sources, complement, any_function_of_three, shifts, wide_shifts, shift_conditions, rotations, bit_counts,
    bit_fields,
]  # fmt: skip

test_logic = each_of(CASES, may_lack=True)
