"""What one instruction does to one lane, written from the descriptions of the instruction set: plain and slow.

Integers are Python's, floats are exact (float_reference). `step` executes an instruction on a State; control flow
stands in flow_reference.
"""

from __future__ import annotations

from collections.abc import Callable

import float_reference as real
from assembler import FLOATS, GRF_BYTES, SIGNED, TYPE_BITS, Ins, Operand, State
from float_reference import Real

Value = int | Real
MODE_BITS = 0x30  # cr0[5:4]


class Unknown(Exception):
    """The reference does not say what this does."""


def signed(bits: int, width: int) -> int:
    bits &= (1 << width) - 1
    return bits - (1 << width) if bits >> (width - 1) else bits


class Thread:
    """A State with what instructions need besides: masks, cr0, the wide accumulator, who wrote what."""

    def __init__(self, state: State, execution_mask: int = 0xFFFFFFFF):
        self.state = state
        self.mask = execution_mask
        self.cr0 = 0x400004C0 if state.family == "bmg" else 0x4C0
        self.wide: dict[int, int] = {}  # lane -> value behind acc0
        self.loose: dict[int, Ins] = {}  # grf byte -> the instruction whose result may differ a little
        self.writer: dict[tuple[str, int], Ins] = {}

    @property
    def mode(self) -> int:
        return (self.cr0 & MODE_BITS) >> 4

    def file(self, name: str) -> bytearray:
        return self.state.grf if name == "r" else self.state.acc

    def address(self, o: Operand, lane: int) -> int:
        """Byte of the operand's element for this lane, in its register file."""
        size = o.bytes
        if o.indirect:
            k, offset = o.indirect
            v, w, h = o.region
            if o.vxh:
                return self.state.address[k + lane // w] + offset + lane % w * h * size
            return self.state.address[k] + offset + o.element(lane) * size
        return o.number * GRF_BYTES[self.state.family] + (o.sub + o.element(lane)) * size

    def bits(self, o: Operand, lane: int, target: Operand | None = None) -> int:
        if o.file == "imm":
            if o.kind == "vf":
                return o.bits >> lane % 4 * 8 & 0xFF
            if o.kind in ("v", "uv"):
                # Element k lies where word k of the destination does: compilers write 0x100:v for the dwords 0, 1.
                word = lane * max(target.bytes * target.region[2] // 2, 1) if target else lane
                return o.bits >> word % 8 * 4 & 0xF
            return o.bits
        if o.file == "f":
            return self.state.flags[o.number] >> 16 * o.sub & (1 << TYPE_BITS[o.kind]) - 1
        if o.file == "a":
            return self.state.address[o.sub + o.element(lane)]
        at = self.address(o, lane)
        return int.from_bytes(self.file(o.file)[at : at + o.bytes], "little")

    def store(self, ins: Ins, o: Operand, lane: int, bits: int) -> None:
        bits &= (1 << TYPE_BITS[o.kind]) - 1
        if o.file == "null":
            return
        if o.file == "cr":
            self.cr0 = bits
        elif o.file == "f":
            low = 16 * o.sub
            mask = (1 << TYPE_BITS[o.kind]) - 1 << low
            self.state.flags[o.number] = self.state.flags[o.number] & ~mask | bits << low
        elif o.file == "a":
            self.state.address[o.sub + o.element(lane)] = bits
        else:
            at = self.address(o, lane)
            self.file(o.file)[at : at + o.bytes] = bits.to_bytes(o.bytes, "little")
            for byte in range(at, at + o.bytes):
                self.writer[o.file, byte] = ins

    # ---- masks ----------------------------------------------------------------------------------

    def flag_bit(self, number: int, half: int, lane: int) -> bool:
        return self.state.flags[number] >> (16 * half + lane) & 1 == 1

    def predicate(self, ins: Ins, lane: int) -> bool:
        if ins.pred is None:
            return True
        number, half, inverse, func = ins.pred
        lanes = range(ins.offset, ins.offset + ins.size)
        if func in (".any", ".all"):
            group = lanes
        elif func:
            width = int(func.strip(".anylh"))
            first = (lane + ins.offset) // width * width
            group = range(first, first + width)
        else:
            group = range(lane + ins.offset, lane + ins.offset + 1)
        values = [self.flag_bit(number, half, i) for i in group]
        # The inversion happens after any and all.
        return (all(values) if ".all" in func else any(values)) != inverse

    def enabled(self, ins: Ins, lane: int) -> bool:
        return ins.no_mask or self.mask >> (ins.offset + lane) & 1 == 1

    def lanes(self, ins: Ins) -> list[int]:
        return [i for i in range(ins.size) if self.enabled(ins, i) and self.predicate(ins, i)]

    def set_flag(self, ins: Ins, lane: int, value: bool) -> None:
        if ins.cond is None or ins.op in ("sel", "csel"):
            return
        _, number, half = ins.cond
        bit = 1 << (16 * half + ins.offset + lane)
        self.state.flags[number] = self.state.flags[number] & ~bit | (bit if value else 0)


# ---- operands and results -----------------------------------------------------------------------


def restricted_float(byte: int) -> Real:
    """One element of :vf: sign, 3 exponent bits of bias 3, 4 mantissa bits; 0 is zero."""
    if byte & 0x7F == 0:
        return real.real(0, byte != 0)
    value = real.Fraction(16 + (byte & 15), 16) * real.Fraction(2) ** ((byte >> 4 & 7) - 3)
    return real.real(-value if byte & 0x80 else value)


LOGIC = {"and", "or", "xor", "not"}


def value_of(bits: int, o: Operand, op: str) -> Value:
    kind = o.kind
    if kind == "vf":
        value: Value = restricted_float(bits)
    elif kind in FLOATS:
        value = real.decode(bits, kind)
    elif kind in ("v", "uv"):
        value = signed(bits, 4) if kind == "v" else bits
    else:
        value = signed(bits, TYPE_BITS[kind]) if kind in SIGNED else bits
    if op in LOGIC:
        return ~value if o.mods in ("-", "~") else value
    if "abs" in o.mods:
        value = abs(value)
    return -value if o.mods.startswith("-") else value


def as_real(value: Value) -> Real:
    return value if isinstance(value, Real) else real.real(value)


def bounds(kind: str) -> tuple[int, int]:
    width = TYPE_BITS[kind]
    return (-(1 << width - 1), (1 << width - 1) - 1) if kind in SIGNED else (0, (1 << width) - 1)


def convert(value: Value, kind: str, sat: bool, mode: int) -> int:
    """The bits of a result in the destination's type."""
    if kind in FLOATS:
        x = as_real(value)
        if sat:
            if x.is_nan or real.compare(x, real.real(0)) in (-1, 0):
                x = real.real(0)
            elif real.compare(x, real.real(1)) == 1:
                x = real.real(1)
        return real.encode(x, kind, mode)
    low, high = bounds(kind)
    if isinstance(value, Real):
        if value.is_nan:
            return 0
        if value.kind == "inf":
            value = low if value.negative else high
        value = int(value.value) if isinstance(value, Real) else value  # towards zero
        value = min(max(value, low), high)
    elif sat:
        value = min(max(value, low), high)
    return value & (1 << TYPE_BITS[kind]) - 1


def holds(condition: str, order: int | None) -> bool:
    if order is None:
        return condition in ("ne", "un")
    return {
        "eq": order == 0,
        "ne": order != 0,
        "gt": order > 0,
        "ge": order >= 0,
        "lt": order < 0,
        "le": order <= 0,
        "un": False,
    }[condition]


def order_of(a: Value, b: Value) -> int | None:
    if isinstance(a, int) and isinstance(b, int):
        return (a > b) - (a < b)
    return real.compare(as_real(a), as_real(b))


# ---- one function per opcode over the values of a lane ------------------------------------------

Lane = Callable[[Thread, Ins, int, list[Value]], Value]


def add_values(mode: int, a: Value, b: Value) -> Value:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return real.add(as_real(a), as_real(b), mode)


def mul_values(a: Value, b: Value) -> Value:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return real.mul(as_real(a), as_real(b))


def op_mov(t, ins, lane, s):
    return s[0]


def op_add(t, ins, lane, s):
    return add_values(t.mode, s[0], s[1])


def op_add3(t, ins, lane, s):
    return s[0] + s[1] + s[2]


def op_avg(t, ins, lane, s):
    return (s[0] + s[1] + 1) >> 1


def op_mul(t, ins, lane, s):
    product = mul_values(s[0], s[1])
    if ins.dst.file == "acc" and isinstance(product, int):
        t.wide[lane] = product
    return product


def op_mad(t, ins, lane, s):
    return add_values(t.mode, s[0], mul_values(s[1], s[2]))


def op_mac(t, ins, lane, s):
    kind = ins.dst.kind
    at = lane * TYPE_BITS[kind] // 8
    bits = int.from_bytes(t.state.acc[at : at + TYPE_BITS[kind] // 8], "little")
    return add_values(t.mode, value_of(bits, Operand(kind), "mac"), mul_values(s[0], s[1]))


def full_product(t, ins, lane, s):
    width = TYPE_BITS[ins.srcs[1].kind]
    return t.wide[lane] + ((s[0] * (s[1] >> width // 2)) << width // 2)


def op_mach(t, ins, lane, s):
    full = full_product(t, ins, lane, s)
    if t.state.family == "dg2" and "AccWrEn" not in ins.options:
        return full & 0xFFFFFFFF
    if "AccWrEn" in ins.options or t.state.family != "dg2":
        t.state.acc[4 * lane : 4 * lane + 4] = (full & 0xFFFFFFFF).to_bytes(4, "little")
        t.wide[lane] = full
    return full >> 32


def op_macl(t, ins, lane, s):
    return full_product(t, ins, lane, s) & 0xFFFFFFFF


def op_addc(t, ins, lane, s):
    t.state.acc[4 * lane : 4 * lane + 4] = (s[0] + s[1] >> 32).to_bytes(4, "little")
    return s[0] + s[1]


def op_subb(t, ins, lane, s):
    t.state.acc[4 * lane : 4 * lane + 4] = int(s[0] < s[1]).to_bytes(4, "little")
    return s[0] - s[1]


def op_dp4a(t, ins, lane, s):
    total = s[0]
    for byte in range(4):
        parts = [value >> 8 * byte & 0xFF for value in s[1:]]
        a, b = (signed(p, 8) if o.kind in SIGNED else p for p, o in zip(parts, ins.srcs[1:], strict=True))
        total += a * b
    return total


def op_sel(t, ins, lane, s):
    if ins.cond is None:
        return s[0] if t.predicate(ins, lane) else s[1]
    nans = [isinstance(value, Real) and value.is_nan for value in s]
    if any(nans):
        return s[1] if nans[0] else s[0]
    return s[0] if holds(ins.cond[0], order_of(s[0], s[1])) else s[1]


def op_csel(t, ins, lane, s):
    return s[0] if holds(ins.cond[0], order_of(s[2], 0)) else s[1]


def op_cmp(t, ins, lane, s):
    true = holds(ins.cond[0], order_of(s[0], s[1]))
    t.set_flag(ins, lane, true)
    return -1 if true else 0


def op_and(t, ins, lane, s):
    return s[0] & s[1]


def op_or(t, ins, lane, s):
    return s[0] | s[1]


def op_xor(t, ins, lane, s):
    return s[0] ^ s[1]


def op_not(t, ins, lane, s):
    return ~s[0]


def op_bfn(t, ins, lane, s):
    table, width = int(ins.sub_op, 0), TYPE_BITS[ins.dst.kind]
    return sum((table >> ((s[0] >> i & 1) + 2 * (s[1] >> i & 1) + 4 * (s[2] >> i & 1)) & 1) << i for i in range(width))


def shift_count(ins, count):
    wide = any(TYPE_BITS[o.kind] == 64 for o in (ins.dst, *ins.srcs))
    return count & (63 if wide else 31)


def op_shl(t, ins, lane, s):
    return s[0] << shift_count(ins, s[1])


def op_shr(t, ins, lane, s):
    return (s[0] & (1 << TYPE_BITS[ins.srcs[0].kind]) - 1) >> shift_count(ins, s[1])


def op_asr(t, ins, lane, s):
    return s[0] >> shift_count(ins, s[1])


def rotate(ins, value, left):
    width = TYPE_BITS[ins.dst.kind]
    value &= (1 << width) - 1
    return value << left % width | value >> (width - left % width)


def op_rol(t, ins, lane, s):
    return rotate(ins, s[0], s[1])


def op_ror(t, ins, lane, s):
    return rotate(ins, s[0], -s[1])


def op_lzd(t, ins, lane, s):
    return 32 - (s[0] & 0xFFFFFFFF).bit_length()


def op_fbh(t, ins, lane, s):
    if s[0] in (0, -1):
        return 0xFFFFFFFF
    if ins.srcs[0].kind == "d":  # bits that equal the sign
        return 32 - (s[0] if s[0] >= 0 else ~s[0]).bit_length()
    return 32 - s[0].bit_length()


def op_fbl(t, ins, lane, s):
    return (s[0] & -s[0]).bit_length() - 1 if s[0] else 0xFFFFFFFF


def op_cbit(t, ins, lane, s):
    return (s[0] & 0xFFFFFFFF).bit_count()


def op_bfrev(t, ins, lane, s):
    return int(f"{s[0] & 0xFFFFFFFF:032b}"[::-1], 2)


def op_bfe(t, ins, lane, s):
    width, offset = s[0] & 31, s[1] & 31
    value = signed(s[2], 32) if ins.dst.kind == "d" else s[2] & 0xFFFFFFFF
    if width == 0 or width + offset >= 32:
        return value >> offset if width else 0
    field = value >> offset & (1 << width) - 1
    return signed(field, width) if ins.dst.kind == "d" else field


def op_bfi1(t, ins, lane, s):
    return (1 << (s[0] & 31)) - 1 << (s[1] & 31)


def op_bfi2(t, ins, lane, s):
    start = (s[0] & -s[0]).bit_length() - 1 if s[0] else 0
    return s[0] & s[1] << start | ~s[0] & s[2]


def op_frc(t, ins, lane, s):
    return real.fraction_part(s[0])


def op_round(t, ins, lane, s):
    return real.to_integer(s[0], ins.op)


OPS: dict[str, Lane] = {
    name[3:]: function for name, function in globals().items() if name.startswith("op_") and name != "op_round"
}
OPS |= dict.fromkeys(("rndd", "rndu", "rnde", "rndz"), op_round)
OPS |= {"madm": op_mad, "cmpn": op_cmp}


# ---- one instruction ----------------------------------------------------------------------------


def is_raw_move(ins: Ins) -> bool:
    source = ins.srcs[0]
    return ins.op == "mov" and source.kind == ins.dst.kind and not source.mods and not ins.sat


def step(t: Thread, ins: Ins) -> None:
    """Executes anything but control flow, dpas and math."""
    selects = ins.op == "sel" and ins.cond is None  # there the predicate picks a source
    lanes = [i for i in range(ins.size) if t.enabled(ins, i)] if selects else t.lanes(ins)
    results: list[tuple[int, int]] = []
    for lane in lanes:
        raw = [t.bits(o, lane, ins.dst) for o in ins.srcs]
        if is_raw_move(ins):
            results.append((lane, raw[0]))
            if ins.cond:
                t.set_flag(ins, lane, holds(ins.cond[0], order_of(value_of(raw[0], ins.srcs[0], "mov"), 0)))
            continue
        if ins.op not in OPS:
            raise Unknown(ins.op)
        value = OPS[ins.op](t, ins, lane, [value_of(bits, o, ins.op) for bits, o in zip(raw, ins.srcs, strict=True)])
        if ins.op in ("cmp", "cmpn"):
            results.append((lane, value))
            continue
        bits = convert(value, ins.dst.kind, ins.sat, t.mode)
        results.append((lane, bits))
        if ins.cond:
            # Integers before they are narrowed, floats after rounding, patterns of bits as they are written.
            seen = real.decode(bits, ins.dst.kind) if ins.dst.kind in FLOATS else value
            seen = bits if ins.op in LOGIC else seen
            t.set_flag(ins, lane, holds(ins.cond[0], order_of(seen, 0)))
    for lane, bits in results:
        t.store(ins, ins.dst, lane, bits)
        if "AccWrEn" in ins.options and ins.op not in ("addc", "subb", "mach"):
            t.store(ins, Operand(ins.dst.kind, region=(0, 32, 1), file="acc"), lane, bits)
