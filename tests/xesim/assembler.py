"""Instructions as data: their text in IGA's assembly, the machine code, and a run of it on the simulator."""

from __future__ import annotations

import ctypes
import json
import subprocess
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from offline_compiler import need_iga64
from toolbox import IGA_PLATFORM, function

GRF_BYTES = {"dg2": 32, "pvc": 64, "bmg": 64}
DPAS_LANES = {"dg2": 8, "pvc": 16, "bmg": 16}
TERNARY = {"add3", "mad", "madm", "csel", "dp4a", "bfn", "bfe", "bfi2"}

TYPE_BITS = {"ub": 8, "uw": 16, "ud": 32, "uq": 64, "b": 8, "w": 16, "d": 32, "q": 64}
TYPE_BITS |= {"bf8": 8, "hf": 16, "bf": 16, "f": 32, "tf32": 32, "df": 64}
TYPE_BITS |= {"u4": 4, "s4": 4, "u2": 2, "s2": 2, "v": 32, "uv": 32, "vf": 32}
FLOATS = {"bf8", "hf", "bf", "f", "tf32", "df"}
SIGNED = {"b", "w", "d", "q", "s4", "s2"}


@dataclass(frozen=True)
class Operand:
    """r10.0<1;1,0>:f and its relatives. `region`: (v, w, h); a destination's stride is h."""

    kind: str
    number: int = 0
    sub: int = 0  # in elements
    region: tuple[int, int, int] = (1, 1, 0)
    mods: str = ""  # "", "-", "abs", "-abs", "~"
    file: str = "r"  # "r", "acc", "f", "a", "cr", "null", "imm"
    bits: int = 0  # of an immediate
    indirect: tuple[int, int] | None = None  # k of a0.k, offset in bytes
    vxh: bool = False

    @property
    def bytes(self) -> int:
        return TYPE_BITS[self.kind] // 8

    def element(self, lane: int) -> int:
        """How many elements behind the first one."""
        v, w, h = self.region
        return lane // w * v + lane % w * h


def reg(number: int, kind: str, sub: int = 0, region=(1, 1, 0), mods: str = "") -> Operand:
    return Operand(kind, number, sub, region, mods)


def scalar(number: int, kind: str, sub: int = 0, mods: str = "") -> Operand:
    return Operand(kind, number, sub, (0, 1, 0), mods)


def dst(number: int, kind: str, sub: int = 0, stride: int = 1, file: str = "r") -> Operand:
    return Operand(kind, number, sub, (0, 32, stride), file=file)


def null(kind: str) -> Operand:
    return Operand(kind, region=(0, 32, 1), file="null")


def acc(number: int, kind: str, region=(1, 1, 0), mods: str = "") -> Operand:
    return Operand(kind, number, 0, region, mods, file="acc")


def flag_reg(number: int, half: int = 0, kind: str = "uw") -> Operand:
    return Operand(kind, number, half, (0, 1, 0), file="f")


def imm(bits: int, kind: str) -> Operand:
    return Operand(kind, file="imm", bits=bits & (1 << TYPE_BITS[kind]) - 1, region=(0, 1, 0))


@dataclass(frozen=True)
class Ins:
    op: str
    size: int
    dst: Operand | None = None
    srcs: tuple[Operand, ...] = ()
    offset: int = 0  # M0, M8, ...
    no_mask: bool = False
    pred: tuple[int, int, bool, str] | None = None  # flag register, half, inverse, function
    cond: tuple[str, int, int] | None = None  # modifier, flag register, half
    sat: bool = False
    sub_op: str = ""  # math function, bfn table, dpas shape
    options: tuple[str, ...] = ()  # "AccWrEn"
    jip: str = ""
    uip: str = ""
    label: str = ""  # stands before the instruction
    text: str = ""  # the whole text, if it is none of the usual forms
    exact: bool = field(default=True)  # False: compared with a tolerance

    def with_(self, **changes) -> Ins:
        return replace(self, **changes)


def operand_text(o: Operand, role: str) -> str:
    if o.file == "imm":
        return f"0x{o.bits:X}:{o.kind}"
    name = "null" if o.file == "null" else f"{o.file}{o.number}.{o.sub}"
    if o.indirect:
        name = f"r[a0.{o.indirect[0]}, {o.indirect[1]}]"
    v, w, h = o.region
    region = {
        "dst": f"<{h}>",
        "src": f"<{w},{h}>" if o.vxh else f"<{v};{w},{h}>",
        "src0,1 of 3": f"<{v};{h}>",
        "src2 of 3": f"<{h if w > 1 else v}>",
        "bare": "",
    }[role]
    if o.file == "null" and role != "dst":
        region = ""
    mods = {"": "", "-": "-", "~": "~", "abs": "(abs)", "-abs": "-(abs)"}[o.mods]
    return f"{mods}{name}{region}:{o.kind}"


def dpas_text(o: Operand, is_src2: bool) -> str:
    if o.file == "null":
        return f"null:{o.kind}"
    return f"r{o.number}.{o.sub}:{o.kind}" if is_src2 else f"r{o.number}:{o.kind}"


def predicate_text(ins: Ins) -> str:
    parts = ["W"] if ins.no_mask else []
    if ins.pred:
        number, half, inverse, func = ins.pred
        parts.append(f"{'~' if inverse else ''}f{number}.{half}{func}")
    return f"({'&'.join(parts)}) " if parts else ""


def text_of(ins: Ins) -> str:
    label = f"{ins.label}:\n" if ins.label else ""
    if ins.text:
        return label + ins.text
    op = f"{ins.op}.{ins.sub_op}" if ins.sub_op else ins.op
    head = f"{predicate_text(ins)}{op} ({ins.size}|M{ins.offset}) "
    if ins.cond:
        head += f"({ins.cond[0]})f{ins.cond[1]}.{ins.cond[2]} "
    if ins.sat:
        head += "(sat)"
    words = []
    if ins.op == "dpas":
        words = [dpas_text(o, i == 3) for i, o in enumerate([ins.dst, *ins.srcs])]
    elif ins.op in ("call", "ret"):
        words = [f"r{o.number}.{o.sub}" for o in (ins.dst, *ins.srcs) if o]
    else:
        if ins.dst:
            words.append(operand_text(ins.dst, "dst"))
        for i, source in enumerate(ins.srcs):
            role = "src" if ins.op not in TERNARY else "src2 of 3" if i == 2 else "src0,1 of 3"
            words.append(operand_text(source, role))
    words += [target for target in (ins.jip, ins.uip) if target]
    tail = f" {{{','.join(ins.options)}}}" if ins.options else ""
    return label + head + "  ".join(words) + tail


# The end of a thread: a message to the gateway.
END = "(W) send.gtwy (1|M0) null r127 null:0 0x0 0x02000010 {EOT}\n"


def assemble(family: str, instructions: list[Ins]) -> bytes:
    text = "\n".join(text_of(ins) for ins in instructions) + "\n" + END
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "code.asm"), Path(folder, "code.bin")
        source.write_text(text)
        command = [need_iga64(), "-a", f"-p={IGA_PLATFORM[family]}", "-o", str(binary), str(source)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise AssertionError(f"iga64 refuses:\n{done.stderr[:1000]}")
        code = binary.read_bytes()
    assert len(code) == 16 * (len(instructions) + 1), "iga64 compacted or added instructions"
    return code


@dataclass
class State:
    """The registers of a thread."""

    family: str
    grf: bytearray
    acc: bytearray
    flags: list[int]
    address: list[int]  # a0 as 16 words

    @staticmethod
    def zero(family: str) -> State:
        size = GRF_BYTES[family]
        return State(family, bytearray(256 * size), bytearray(16 * size), [0] * 4, [0] * 16)

    def copy(self) -> State:
        return State(self.family, bytearray(self.grf), bytearray(self.acc), list(self.flags), list(self.address))


def execute(state: State, code: bytes, **options) -> str | None:
    """Runs the code on the simulator; changes the state. Returns the text of a fault, or None."""
    call = function(
        "xesim_execute", ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_char_p, *[ctypes.c_void_p] * 4
    )
    grf = (ctypes.c_uint8 * len(state.grf)).from_buffer(state.grf)
    accumulators = (ctypes.c_uint8 * len(state.acc)).from_buffer(state.acc)
    flags = (ctypes.c_uint32 * 4)(*state.flags)
    address = (ctypes.c_uint16 * 16)(*state.address)
    error = call(
        state.family.encode(), code, len(code), json.dumps(options).encode(), grf, accumulators, flags, address
    )
    state.flags, state.address = list(flags), list(address)
    return None if error is None else error.decode()
