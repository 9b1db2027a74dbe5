"""dpas: D = C + A B, exact and rounded once; layouts of all operand types, repeat counts."""

import itertools
import math

import float_reference as real
import pytest
from assembler import DPAS_LANES, FLOATS, SIGNED, TYPE_BITS, Ins, Operand, assemble, dst, execute, null
from instruction_maker import FAMILIES, Maker, differences
from scalar_reference import Thread, signed

DEPTH = 8
RESULT, SUM, B, A = 120, 140, 160, 180  # registers
INTEGERS = ["s8", "u8", "s4", "u4", "s2", "u2"]
FLOAT_CASES = [("f", "f", "bf"), ("f", "f", "hf"), ("f", "f", "tf32"), ("bf", "bf", "bf"), ("hf", "hf", "hf")]
FLOAT_CASES += [("bf", "f", "bf"), ("f", "bf", "bf"), ("hf", "f", "hf"), ("f", "hf", "hf")]
# Bytes are named b and ub in the assembly.
NAME = {"s8": "b", "u8": "ub"}


def bits_of(kind: str) -> int:
    return TYPE_BITS[NAME.get(kind, kind)]


def operations(b: str, a: str) -> int:
    """Products a lane adds in each of the 8 steps."""
    if a in FLOATS:
        return 32 // bits_of(a) if a != "tf32" else 1
    return 4 if 8 in (bits_of(a), bits_of(b)) else 8


def element(data: bytes, index: int, kind: str):
    """Element number `index` of packed data."""
    width = bits_of(kind)
    bits = int.from_bytes(data, "little") >> index * width & (1 << width) - 1
    if kind in FLOATS:
        return real.decode(bits, kind)
    return signed(bits, width) if NAME.get(kind, kind) in SIGNED else bits


def b_element(data: bytes, step: int, k: int, column: int, lanes: int, kind: str, ops: int):
    """VNNI: a dword holds ops elements of each of `packed` steps of one column."""
    packed = 32 // (ops * bits_of(kind)) if kind != "tf32" else 1
    dword = step // packed * lanes + column
    return element(data[4 * dword : 4 * dword + 4], step % packed * ops + k, kind)


def reference(m: Maker, out: str, c: str, b: str, a: str, repeat: int, a_byte: int, has_sum: bool) -> list[int]:
    """The bits of D, row by row."""
    lanes, grf, ops = DPAS_LANES[m.family], m.grf, operations(b, a)
    state = m.state.grf
    b_data, a_data = bytes(state[B * grf : A * grf]), bytes(state[A * grf + a_byte : (A + 20) * grf])
    c_data = bytes(state[SUM * grf : B * grf])
    a_width = bits_of(a)
    result = []
    for row, column in itertools.product(range(repeat), range(lanes)):
        total = element(c_data, row * lanes + column, c) if has_sum else (real.real(0) if c in FLOATS else 0)
        products = []
        for step, k in itertools.product(range(DEPTH), range(ops)):
            at = (row * DEPTH + step) * ops + k
            first = at * a_width // 8
            left = element(a_data[first : first + 4], 0 if a_width >= 8 else at * a_width % 8 // a_width, a)
            products.append((left, b_element(b_data, step, k, column, lanes, b, ops)))
        if a in FLOATS:
            for left, right in products:
                total = real.add(total, real.mul(left, right))
            result.append(real.encode(total, out))
        else:
            value = total + sum(left * right for left, right in products)
            result.append(value & 0xFFFFFFFF)
    return result


def fill(m: Maker, kinds: tuple[str, str, str], special: bool) -> None:
    c, b, a = kinds
    for register, count, kind in ((SUM, 20, c), (B, 20, b), (A, 20, a)):
        if kind in FLOATS and special:
            m.fill(register, kind, count)
        elif kind in FLOATS:  # values near one: sums that round
            size = count * m.grf * 8 // bits_of(kind)
            values = [real.encode(real.real(real.Fraction(m.rng.gauss(0, 1))), kind) for _ in range(size)]
            m.put(register, kind, values)
        else:
            m.state.grf[register * m.grf : (register + count) * m.grf] = m.rng.randbytes(count * m.grf)


def run(m: Maker, out: str, c: str, b: str, a: str, repeat: int, a_byte: int = 0, has_sum=True, **options) -> None:
    lanes = DPAS_LANES[m.family]
    a_name, b_name = NAME.get(a, a), NAME.get(b, b)
    source_a = Operand(a_name, A + a_byte // m.grf, a_byte % m.grf * 8 // bits_of(a))
    sources = (Operand(c, SUM) if has_sum else null(c), Operand(b_name, B), source_a)
    ins = Ins("dpas", lanes, dst(RESULT, out), sources, sub_op=f"8x{repeat}")
    got = m.state.copy()
    fault = execute(got, assemble(m.family, [ins]), **options)
    assert fault is None, fault
    thread = Thread(m.state.copy())
    for i, bits in enumerate(reference(m, out, c, b, a, repeat, a_byte, has_sum)):
        target = Operand(out, RESULT)
        thread.store(ins, target, i, bits)
    wrong = differences(got, thread.state, thread.writer)
    assert not wrong, "\n".join(wrong[:5])


@pytest.mark.parametrize("special", [False, True], ids=["values", "special"])
@pytest.mark.parametrize("kinds", FLOAT_CASES, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_floats(family, kinds, special):
    out, c, a = kinds
    if family == "dg2" and ("tf32" in kinds or (out, c) != ("f", "f")):
        pytest.skip("dg2 has no such operands")
    m = Maker(family, 11)
    for repeat in (1, 3, 8):
        fill(m, (c, a, a), special)
        run(m, out, c, a, a, repeat)
    run(m, out, c, a, a, 4, has_sum=False)


@pytest.mark.parametrize("b", INTEGERS)
@pytest.mark.parametrize("a", INTEGERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_integers(family, a, b):
    m = Maker(family, 12)
    for repeat, out in ((8, "d"), (1, "d"), (4, "ud")):
        fill(m, ("d", b, a), False)
        run(m, out, out, b, a, repeat)


@pytest.mark.parametrize("family", FAMILIES)
def test_integer_sums_wrap(family):
    # No assembler writes a saturating dpas.
    m = Maker(family, 13)
    fill(m, ("d", "s8", "s8"), False)
    m.put(SUM, "ud", [m.rng.choice([0x7FFFFFF0, 0x80000010, 0x7FFFFFFF, 0x80000000]) for _ in range(64)])
    run(m, "d", "d", "s8", "s8", 4)
    m.put(SUM, "ud", [m.rng.choice([0xFFFFFFF0, 16, 0xFFFFFFFF, 0]) for _ in range(64)])
    run(m, "ud", "ud", "s8", "u8", 4)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_a_start_anywhere(family):
    m = Maker(family, 14)
    for kind, byte in (("bf", 32), ("hf", 16), ("bf", 96)):
        fill(m, ("f", kind, kind), False)
        run(m, "f", "f", kind, kind, 1, a_byte=byte)
    for kind, byte in (("s8", 32), ("s4", 16), ("u2", 8)):
        fill(m, ("d", kind, kind), False)
        run(m, "d", "d", kind, kind, 1, a_byte=byte)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_execution_mask_is_ignored(family):
    m = Maker(family, 15)
    fill(m, ("f", "bf", "bf"), False)
    run(m, "f", "f", "bf", "bf", 8, execution_mask=0x5)


@pytest.mark.parametrize("family", FAMILIES)
def test_stepwise_sums_differ_by_rounding_only(family):
    m = Maker(family, 16)
    fill(m, ("f", "bf", "bf"), False)
    lanes = DPAS_LANES[family]
    ins = Ins("dpas", lanes, dst(RESULT, "f"), (Operand("f", SUM), Operand("bf", B), Operand("bf", A)), sub_op="8x8")
    results = []
    for model in ("exact", "stepwise"):
        state = m.state.copy()
        assert execute(state, assemble(family, [ins]), check=f"none,dpas={model}") is None
        at = RESULT * m.grf
        words = [int.from_bytes(state.grf[at + 4 * i : at + 4 * i + 4], "little") for i in range(8 * lanes)]
        results.append([real.as_float(real.decode(word, "f")) for word in words])
    assert results[0] != results[1]
    assert all(math.isclose(x, y, rel_tol=1e-5, abs_tol=1e-5) for x, y in zip(*results, strict=True))
