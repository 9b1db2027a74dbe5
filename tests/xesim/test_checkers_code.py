"""Checkers on single instructions in IGA's assembly: undefined operands, shapes of 2D blocks, unknown encodings."""

import re
import struct

import numpy as np
import pytest
from assembler import GRF_BYTES, Ins, State, assemble, execute
from esimd import machine, simulator

FAMILIES = ["dg2", "pvc", "bmg"]
WITH_BLOCKS = ["pvc", "bmg"]
PLACE = r"kernel \(code\), group \(0, 0, 0\), thread 0, at 0x[0-9a-f]{4} \[[0-9a-f]{16} [0-9a-f]{16}\] "
LANES = {"dg2": 8, "pvc": 16, "bmg": 16}


@pytest.fixture(autouse=True)
def with_simulator():
    simulator()


def line(text: str) -> Ins:
    return Ins("", 0, text=text)


def run(family: str, *lines: str, **options) -> tuple[State, str | None]:
    """The state that the code leaves, and its fault."""
    state = options.pop("state", None) or State.zero(family)
    return state, execute(state, assemble(family, [line(text) for text in lines]), check="all", **options)


def check_fault(text: str | None, *parts: str) -> None:
    assert text is not None, "no fault"
    assert re.match(PLACE + ".*" + ".*".join(parts), text), text


@pytest.fixture
def target() -> machine.Array:
    return machine.Machine("pvc").array(np.zeros(64, np.uint32))


def address(target: machine.Array) -> list[str]:
    """r10 = the address in lane 0; other lanes stay undefined."""
    low, high = target.address & 0xFFFFFFFF, target.address >> 32
    return [f"(W) mov (1|M0) r10.0<1>:ud 0x{low:X}:ud", f"(W) mov (1|M0) r10.1<1>:ud 0x{high:X}:ud"]


# A dword of lane 0 to memory, and back.
def store(family: str, lanes: int = 1) -> str:
    length = 0x02000584 if lanes == 1 and family != "dg2" else 0x04000584 if lanes > 1 else 0x02000584
    return f"(W) send.ugm ({lanes}|M0) null r10 r20:1 0x0 0x{length:08X}"


# ---- undefined values ---------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_undefined_data(family, target):
    defined = "(W) mov (1|M0) r20.0<1>:ud 0x7:ud"
    assert run(family, *address(target), defined, store(family), undefined=True)[1] is None
    assert target.view()[0] == 7
    text = run(family, *address(target), store(family), undefined=True)[1]
    check_fault(text, "send.ugm", r"src1 \(data\) reads r20 byte 0, which was never given a value")


@pytest.mark.parametrize("family", FAMILIES)
def test_undefined_address(family, target):
    defined = "(W) mov (1|M0) r20.0<1>:ud 0x7:ud"
    text = run(family, address(target)[0], defined, store(family), undefined=True)[1]
    check_fault(text, "send.ugm", r"src0 \(address\) reads r10 byte 4, which was never given a value")


@pytest.mark.parametrize("family", FAMILIES)
def test_undefined_values_are_followed_through_arithmetic(family, target):
    """Only what reaches memory matters: r21 is undefined, its use in r22 is not a fault, storing that is."""
    lines = [
        *address(target),
        "(W) mov (1|M0) r20.0<1>:ud 0x7:ud",
        "(W) add (1|M0) r22.0<1>:ud r20.0<0;1,0>:ud r21.0<0;1,0>:ud",
    ]
    assert run(family, *lines, store(family), undefined=True)[1] is None
    lines.append("(W) mov (1|M0) r20.0<1>:ud r22.0<0;1,0>:ud")
    check_fault(run(family, *lines, store(family), undefined=True)[1], r"src1 \(data\) reads r20 byte 0")


@pytest.mark.parametrize("family", FAMILIES)
def test_undefined_branch(family):
    n = LANES[family]
    compare = f"cmp ({n}|M0) (eq)f0.0 null<1>:ud r20.0<1;1,0>:ud 0x0:ud"
    branch = f"(f0.0) goto ({n}|M0) L1 L1"
    end = [f"L1:\njoin ({n}|M0) L2", "L2:\n(W) mov (1|M0) r30.0<1>:ud 0x1:ud"]
    value = f"(W) mov ({n}|M0) r20.0<1>:ud 0x0:ud"
    assert run(family, value, compare, branch, *end, undefined=True)[1] is None
    text = run(family, compare, branch, *end, undefined=True)[1]
    check_fault(text, "goto", "the predicate f0.0 of this branch was never given a value in lanes")
    assert run(family, compare, branch, *end)[1] is None


@pytest.mark.parametrize("family", FAMILIES)
def test_undefined_index_of_a_register(family):
    move = "(W) mov (1|M0) r30.0<1>:ud r[a0.0, 0]<0;1,0>:ud"
    assert run(family, "(W) mov (1|M0) a0.0<1>:uw 0x40:uw", move, undefined=True)[1] is None
    check_fault(run(family, move, undefined=True)[1], "mov", "a0.0")


@pytest.mark.parametrize("family", FAMILIES)
def test_choice_between_equal_values_is_defined(family, target):
    """A finished lane of a loop picks 0 or 0 by a comparison that nobody made."""
    n = LANES[family]
    lines = [
        *address(target),
        f"cmp ({n}|M0) (eq)f0.0 null<1>:ud r21.0<1;1,0>:ud 0x0:ud",
        "(W) mov (1|M0) r22.0<1>:ud {}:ud",
        "(W&f0.0) sel (1|M0) r20.0<1>:ud r22.0<0;1,0>:ud 0x0:ud",
        store(family),
    ]
    equal = [text.format("0x0") for text in lines]
    assert run(family, *equal, undefined=True)[1] is None
    different = [text.format("0x5") for text in lines]
    check_fault(run(family, *different, undefined=True)[1], r"src1 \(data\) reads r20")


# ---- shapes of 2D blocks ------------------------------------------------------------------------

LOAD, STORE = 0x02000003, 0x02000007
SIZES = {1: 0, 2: 1 << 9, 4: 2 << 9, 8: 3 << 9}
VNNI, TRANSPOSED = 1 << 7, 1 << 15
SHAPES = [  # (opcode, element, flags, width, height, blocks, what is wrong)
    (LOAD, 2, 0, 16, 8, 1, None),
    (LOAD, 2, 0, 16, 32, 2, None),
    (LOAD, 2, 0, 17, 8, 1, "block width must be a multiple of 4 bytes, got 34"),
    (LOAD, 1, 0, 6, 8, 1, "block width must be a multiple of 4 bytes, got 6"),
    (LOAD, 2, 0, 34, 8, 1, "width x blocks must be at most 64 bytes, got 68"),
    (LOAD, 2, 0, 16, 8, 3, "width x blocks must be at most 64 bytes, got 96"),
    (LOAD, 4, 0, 4, 8, 4, "too many blocks for the element size, got 4"),
    (LOAD, 8, 0, 4, 8, 2, "too many blocks for the element size, got 2"),
    (LOAD, 1, 0, 8, 8, 5, "too many blocks for the element size, got 5"),
    (LOAD, 2, 0, 16, 33, 1, "block height must be at most 32, got 33"),
    (LOAD, 4, TRANSPOSED, 8, 16, 1, None),
    (LOAD, 4, TRANSPOSED, 9, 16, 1, "transposed 32-bit block is at most 8 wide, got 9"),
    (LOAD, 4, TRANSPOSED, 4, 16, 2, "a transposed load has one block, got 2"),
    (LOAD, 8, TRANSPOSED, 4, 8, 1, None),
    (LOAD, 8, TRANSPOSED, 3, 8, 1, "transposed 64-bit block is 1, 2 or 4 wide, got 3"),
    (LOAD, 8, TRANSPOSED, 4, 4, 1, "transposed 64-bit block has 8 rows, got 4"),
    (LOAD, 2, VNNI, 16, 16, 2, None),
    (LOAD, 2, VNNI, 18, 16, 1, "VNNI block is 4 / size .. 16 wide, got 18"),
    (LOAD, 1, VNNI, 20, 16, 1, "VNNI block is 4 / size .. 16 wide, got 20"),
    (LOAD, 2, VNNI, 16, 1, 1, "VNNI block has at least 4 / size rows, got 1"),
    (LOAD, 1, VNNI, 16, 3, 1, "VNNI block has at least 4 / size rows, got 3"),
    (LOAD, 4, VNNI, 8, 8, 1, "a VNNI 2D block of wide elements"),
    (LOAD, 2, TRANSPOSED, 8, 8, 1, "a transposed 2D block of narrow elements"),
    (LOAD, 4, TRANSPOSED | VNNI, 8, 8, 1, "a 2D block both transposed and VNNI"),
    (STORE, 2, 0, 16, 8, 1, None),
    (STORE, 2, 0, 32, 8, 1, None),
    (STORE, 2, 0, 16, 9, 1, "block height of a store must be at most 8, got 9"),
    (STORE, 2, 0, 16, 8, 2, "a store has one block, got 2"),
    (STORE, 2, VNNI, 16, 8, 1, "a rearranging 2D block store"),
]


@pytest.mark.parametrize("family", WITH_BLOCKS)
@pytest.mark.parametrize("row", SHAPES, ids=lambda row: "-".join(map(str, row[:6])))
def test_shapes_of_2d_blocks(family, row):
    opcode, size, flags, width, height, blocks, what = row
    surface = machine.Machine(family).array(np.zeros((40, 256), np.uint8))
    state = State.zero(family)
    header = struct.pack(
        "<QIIIiiI", surface.address, 255, 39, 255, 0, 0, (blocks - 1) << 16 | (height - 1) << 8 | (width - 1)
    )
    state.grf[10 * 64 : 10 * 64 + len(header)] = header
    desc = opcode | SIZES[size] | flags | (1 << 20 if opcode == LOAD else 0)
    dst, data = ("r40", "null:0") if opcode == LOAD else ("null", "r40:8")
    text = run(family, f"(W) send.ugm (1|M0) {dst} r10 {data} 0x0 0x{desc:08X}", state=state)[1]
    if what is None:
        assert text is None
    else:
        check_fault(text, "send.ugm", re.escape(what))


@pytest.mark.parametrize("family", FAMILIES)
def test_dpas_of_the_wrong_width(family):
    right, wrong = LANES[family], 24 - LANES[family]
    text = "dpas.8x8 ({}|M0) r40:f r60:f r80:bf r100.0:bf"
    assert run(family, text.format(right))[1] is None
    found = run(family, text.format(wrong))[1]
    check_fault(found, "dpas", f"dpas is {right} lanes wide on {family}, this one has {wrong}")


# ---- unknown code -------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_unknown_opcode(family):
    code = bytearray(assemble(family, [line("(W) mov (1|M0) r30.0<1>:ud 0x1:ud"), line("nop")]))
    code[16] = code[16] & 0x80 | 0x0F  # no opcode of any of these machines
    text = execute(State.zero(family), bytes(code))
    assert text is not None
    assert re.match(r"kernel \(code\), group \(0, 0, 0\), thread 0, at 0x0010 \[[0-9a-f]{16} [0-9a-f]{16}\]", text), (
        text
    )
    assert "opcode" in text, text


@pytest.mark.parametrize("family", FAMILIES)
def test_unknown_code_that_is_never_reached_is_no_fault(family):
    code = assemble(family, [line("(W) mov (1|M0) r30.0<1>:ud 0x1:ud")]) + bytes([0x0F] + [0] * 15)
    state = State.zero(family)
    assert execute(state, code) is None
    assert state.grf[30 * GRF_BYTES[family]] == 1


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("sfid", "desc"), [("ugm", 0x0200053F), ("ugm", 0x02000500 | 7 << 9), ("smpl", 0x02000000)])
def test_unknown_message(family, sfid, desc):
    text = run(family, f"(W) send.{sfid} (1|M0) r40 r10 null:0 0x0 0x{desc | 1 << 20:08X}")[1]
    check_fault(text, "send", "unknown message", f"descriptor 0x{desc | 1 << 20:08x}")


@pytest.mark.parametrize("family", FAMILIES)
def test_code_without_an_end(family):
    code = assemble(family, [line("(W) mov (1|M0) r30.0<1>:ud 0x1:ud")])[:16]
    text = execute(State.zero(family), code)
    assert text is not None and "the instruction pointer 0x10 is not the start of an instruction" in text
