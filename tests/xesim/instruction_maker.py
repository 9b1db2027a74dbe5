"""Random instructions on registers full of awkward values, and the comparison of a run with the reference."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import float_reference as real
import pytest
from assembler import (
    FLOATS,
    GRF_BYTES,
    TERNARY,
    TYPE_BITS,
    Ins,
    Operand,
    State,
    assemble,
    execute,
    imm,
    null,
    text_of,
)
from scalar_reference import Thread, step

FAMILIES = ["pvc", "bmg", "dg2"]
POOL_REGISTERS = 10  # of each pool
# Types that share a pool of values.
POOLS = {"b": ("b", "ub"), "w": ("w", "uw"), "d": ("d", "ud"), "q": ("q", "uq")}
POOLS |= {kind: (kind,) for kind in ("bf8", "hf", "bf", "f", "tf32", "df")}
WIDE = {"q", "uq", "df"}  # dg2 has none of them


def awkward_bits(kind: str, rng: random.Random) -> int:
    """Zeros, ends of ranges, denormals, infinities, NaNs, near ones and noise."""
    width = TYPE_BITS[kind]
    if kind not in FLOATS:
        low, high = -(1 << width - 1), (1 << width - 1) - 1
        some = [0, 1, -1, 2, low, low + 1, high, high - 1, 1 << rng.randrange(width), ~(1 << rng.randrange(width))]
        some += [rng.randrange(-20, 20), rng.getrandbits(width), rng.getrandbits(width), rng.getrandbits(width // 2)]
        return rng.choice(some) & (1 << width) - 1
    mantissa, exponent, shift = real.FORMATS[kind]
    top = (1 << exponent) - 1
    one = (top >> 1) << mantissa
    some = [0, 1, (1 << mantissa) - 1, 1 << mantissa, one, one + 1, one - 1, one + (1 << mantissa - 1)]
    some += [(top << mantissa) - 1, top << mantissa, (top << mantissa) | 1 << mantissa - 1]
    some += [one + rng.randrange(-4 << mantissa, 12 << mantissa) for _ in range(8)]
    some += [rng.getrandbits(mantissa + exponent), rng.getrandbits(mantissa)]
    bits = rng.choice(some) | rng.getrandbits(1) << (mantissa + exponent)
    return bits << shift


class Maker:
    """Registers r1 up hold the pools, the rest takes results: every instruction gets bytes of its own."""

    def __init__(self, family: str, seed: int):
        self.family, self.rng = family, random.Random(f"{family} {seed}")
        self.grf = GRF_BYTES[family]
        self.state = State.zero(family)
        self.state.grf[:] = self.rng.randbytes(len(self.state.grf))
        self.state.acc[:] = self.rng.randbytes(len(self.state.acc))
        registers = 4 if family != "dg2" else 2
        self.flags = registers
        self.state.flags = [self.rng.getrandbits(32) if i < registers else 0 for i in range(4)]
        self.first: dict[str, int] = {}
        self.next = 1
        for pool, kinds in POOLS.items():
            if family == "dg2" and pool in WIDE:
                continue
            self.fill(self.next, pool, POOL_REGISTERS)
            for kind in kinds:
                self.first[kind] = self.next
            self.next += POOL_REGISTERS
        self.made: list[Ins] = []

    def fill(self, register: int, kind: str, registers: int) -> None:
        size = TYPE_BITS[kind] // 8
        for at in range(register * self.grf, (register + registers) * self.grf, size):
            self.state.grf[at : at + size] = awkward_bits(kind, self.rng).to_bytes(size, "little")

    def put(self, register: int, kind: str, bits: list[int]) -> None:
        size, at = TYPE_BITS[kind] // 8, register * self.grf
        data = b"".join(value.to_bytes(size, "little") for value in bits)
        self.state.grf[at : at + len(data)] = data

    def free(self, registers: int) -> int:
        """Fresh registers."""
        first = self.next
        self.next += registers
        if self.next > 256:
            raise OverflowError("no registers left: make fewer instructions at once")
        return first

    def has(self, *kinds: str) -> bool:
        return all(kind in self.first for kind in kinds)

    # ---- operands -------------------------------------------------------------------------------

    def region(self, place: str) -> tuple[int, int, int]:
        rng = self.rng
        if rng.random() < 0.5:
            return {"src": (1, 1, 0), "src2 of 3": (0, 32, 1)}.get(place, (1, 1, 0))
        if place == "src":
            w = rng.choice([1, 2, 4, 8, 16])
            return rng.choice([0, 1, 2, 4, 8, 16]), w, rng.choice([0, 1, 2, 4]) if w > 1 else 0
        if place == "src2 of 3":
            return 0, 32, rng.choice([0, 1, 2, 4])
        v, h = rng.choice([(0, 0), (1, 0), (4, 1), (8, 1), (4, 2), (8, 2), (8, 4), (4, 0), (8, 0), (1, 1)])
        return v, v // h if h else max(v, 1), h

    def source(self, kind: str, lanes: int, place: str = "src", mods=("",), unit: bool = False) -> Operand:
        size = TYPE_BITS[kind] // 8
        pool = POOL_REGISTERS * self.grf // size
        while True:
            region = {"src2 of 3": (0, 32, 1)}.get(place, (1, 1, 0)) if unit else self.region(place)
            trial = Operand(kind, 0, 0, region)
            span = max(trial.element(i) for i in range(lanes)) + 1
            if span <= pool:
                break
            unit = True
        start = self.rng.randrange(pool - span + 1)
        if unit or self.rng.random() < 0.5:  # most instructions start a register
            aligned = start // (self.grf // size) * (self.grf // size)
            start = aligned
        if size == 1:
            start -= start % 2  # the second source of 64-byte registers has no odd bytes
        per_register = self.grf // size
        number = self.first[kind] + start // per_register
        return Operand(kind, number, start % per_register, region, self.rng.choice(list(mods)))

    def result(self, kind: str, lanes: int, strides=(1, 1, 2, 4)) -> Operand:
        size = TYPE_BITS[kind] // 8
        stride = self.rng.choice(strides)
        while stride * size > 8:
            stride //= 2
        span = (lanes - 1) * stride + 1
        registers = -(-span * size // self.grf)
        room = registers * self.grf // size - span
        number = self.free(registers)
        return Operand(
            kind, number, self.rng.choice([0, 0, self.rng.randint(0, room)]) % (self.grf // size), (0, 32, stride)
        )

    def literal(self, kind: str) -> Operand:
        return imm(awkward_bits(kind, self.rng), kind)

    def lanes(self, *kinds: str, most: int = 32) -> tuple[int, int]:
        """Execution size and channel offset."""
        size = self.rng.choice([n for n in (1, 2, 4, 8, 16, 16, 32) if n <= most])
        step = max(size, 4 if self.family == "dg2" else 8)
        return size, self.rng.randrange(0, 32 - size + 1, step)

    def flag(self, size: int, offset: int) -> tuple[int, int]:
        return self.rng.randrange(self.flags), 1 if size + offset <= 16 and self.rng.random() < 0.5 else 0

    # ---- instructions ---------------------------------------------------------------------------

    def emit(self, ins: Ins) -> Ins:
        self.made.append(ins)
        return ins

    def make(
        self,
        op: str,
        out: str,
        kinds: tuple[str, ...],
        *,
        mods=("",),
        sat=False,
        cond=(),
        sub_op="",
        predicate=True,
        most=32,
        literals=True,
        to_null=False,
        unit=False,
        options=(),
        strides=(1, 1, 2, 4),
    ) -> Ins | None:
        """One instruction with random registers, regions, masks; None where the family lacks a type."""
        if not self.has(out, *kinds):
            return None
        rng = self.rng
        size, offset = self.lanes(out, *kinds, most=most)
        ternary = op in TERNARY
        sources = []
        for i, kind in enumerate(kinds):
            place = ("src2 of 3" if i == 2 else "src0,1 of 3") if ternary else "src"
            sources.append(self.source(kind, size, place, mods, unit))
        last = sources[-1]
        # A literal stands last; of three sources, as 16 bits; 64 bits only in a plain move.
        allowed = TYPE_BITS[last.kind] == 16 if ternary else TYPE_BITS[last.kind] in (16, 32)
        if literals and allowed and last.kind not in ("bf", "tf32") and rng.random() < 0.2:
            sources[-1] = self.literal(last.kind)
        target = (
            null(out)
            if to_null and rng.random() < 0.5
            else self.result(out, size, strides if not ternary else (1, 1, 2))
        )
        pred = None
        if predicate and rng.random() < 0.3:
            pred = (*self.flag(size, offset), rng.random() < 0.5, "")
        condition = None
        if cond:
            condition = (rng.choice(list(cond)), *self.flag(size, offset))
            if pred and condition:  # both use the one flag field
                pred = (*condition[1:], *pred[2:])
        ins = Ins(
            op,
            size,
            target,
            tuple(sources),
            offset,
            rng.random() < 0.5,
            pred,
            condition,
            sat and rng.random() < 0.5,
            sub_op,
            options,
        )
        return self.emit(ins)

    def rounding(self, mode: int) -> None:
        """Switches cr0[5:4]."""
        base = 0x400004C0 if self.family == "bmg" else 0x4C0
        cr0 = Operand("ud", 0, 0, (0, 32, 1), file="cr")
        self.emit(Ins("mov", 1, cr0, (imm(base | mode << 4, "ud"),), no_mask=True))


# ---- comparison ---------------------------------------------------------------------------------


def same(kind: str, got: bytes, want: bytes) -> bool:
    """Equal bits, or NaN for NaN."""
    if got == want or kind not in FLOATS:
        return got == want
    bits = [int.from_bytes(value, "little") for value in (got, want)]
    return all(real.decode(value, kind).is_nan for value in bits)


def differences(got: State, want: State, writer: dict[tuple[str, int], Ins]) -> list[str]:
    found: list[str] = []
    for name in ("r", "acc"):
        have, need = (s.grf if name == "r" else s.acc for s in (got, want))
        at = 0
        while at < len(need):
            if have[at] == need[at]:
                at += 1
                continue
            ins = writer.get((name, at))
            kind = ins.dst.kind if ins else "ub"
            size = TYPE_BITS[kind] // 8
            first = at - at % size
            old, new = bytes(have[first : first + size]), bytes(need[first : first + size])
            # Nothing says whether saturation keeps the sign of a zero.
            zero_sign = ins is not None and ins.sat and kind in FLOATS and {old[-1], new[-1]} == {0, 0x80}
            if not same(kind, old, new) and not (zero_sign and not any(old[:-1] + new[:-1])):
                place = f"{name}{first // GRF_BYTES[got.family]}.{first % GRF_BYTES[got.family] // size}:{kind}"
                by = text_of(ins) if ins else "nobody"
                found.append(f"{place} got {old[::-1].hex()}, want {new[::-1].hex()}, written by {by}")
            at = first + size
    for i, (have, need) in enumerate(zip(got.flags, want.flags, strict=True)):
        if have != need:
            found.append(f"f{i} got {have:08x}, want {need:08x}")
    if got.address != want.address:
        found.append(f"a0 got {got.address}, want {want.address}")
    return found


Step = Callable[[Thread, Ins], None]


def one_by_one(state: State, instructions: list[Ins], mask: int, run: Step, **options) -> list[str]:
    """Which instructions differ when each starts from the reference's registers."""
    thread = Thread(state.copy(), mask)
    found: list[str] = []
    for ins in instructions:
        before, cr0, wide = thread.state.copy(), thread.cr0, dict(thread.wide)
        run(thread, ins)
        if wide or cr0 != Thread(before).cr0:  # depends on state that a run cannot start with
            prefix = [Ins("mov", 1, Operand("ud", 0, 0, (0, 32, 1), file="cr"), (imm(cr0, "ud"),), no_mask=True)]
        else:
            prefix = []
        got = before.copy()
        fault = execute(got, assemble(before.family, [*prefix, ins]), execution_mask=mask, **options)
        wrong = [fault] if fault else differences(got, thread.state, thread.writer)
        if wrong:
            found.append(f"{text_of(ins)}\n    " + "\n    ".join(wrong[:3]))
        if len(found) >= 8:
            break
    return found


def check(maker: Maker, mask: int = 0xFFFFFFFF, run: Step = step, **options) -> None:
    """The made instructions leave the same registers on the simulator and in the reference."""
    assert maker.made
    code = assemble(maker.family, maker.made)
    got = maker.state.copy()
    fault = execute(got, code, execution_mask=mask, **options)
    thread = Thread(maker.state.copy(), mask)
    for ins in maker.made:
        run(thread, ins)
    wrong = [fault] if fault else differences(got, thread.state, thread.writer)
    if wrong:
        alone = one_by_one(maker.state, maker.made, mask, run, **options)
        details = "\n".join(["in the whole program:", *wrong[:4], "alone:", *alone])
        raise AssertionError(f"{maker.family}: {len(wrong)} differences\n{details}")


Case = Callable[[Maker], None]


def each_of(cases: Sequence[Case], may_lack: bool = False) -> Callable[..., None]:
    """A test of each case on each family; `may_lack`: some families have nothing of what a case makes."""

    @pytest.mark.parametrize("seed", range(2))
    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.parametrize("case", cases, ids=lambda case: case.__name__)
    def test(case: Case, family: str, seed: int) -> None:
        maker = Maker(family, seed)
        case(maker)
        if may_lack and not maker.made:
            pytest.skip(f"{family} has nothing of this")
        check(maker, mask=0xFFFFFFFF if seed == 0 else 0xA5F0_3C69)

    return test
