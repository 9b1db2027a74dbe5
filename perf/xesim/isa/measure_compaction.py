"""Measure the compaction tables of Xe machine code with IGA and write compaction_tables.inc.

A compacted instruction keeps register numbers and scoreboard; the rest are indices into fixed tables. For every index
this program lets IGA disassemble many 8-byte words that contain it, reads the fields of the full instruction back from
IGA's JSON, and reports words that disagree. A field that no word shows (a flag register that nothing uses) stays 0.

    python measure_compaction.py --iga64 /path/to/iga64 > compaction_tables.inc
"""

from __future__ import annotations

import argparse
import json
import random
import struct
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

PLATFORM = {"dg2": "xehpg", "pvc": "xehpc", "bmg": "xe2"}
WORDS_PER_INDEX = 400
TYPES = ["ub", "uw", "ud", "uq", "b", "w", "d", "q", "bf8", "hf", "f", "df", None, "bf", "tf32", None]
PACKED = {"uv": 0, "v": 4, "vf": 8}
INTEGERS = ["ub", "uw", "ud", "uq", "b", "w", "d", "q"]
FLOATS = ["bf8", "hf", "f", "df", None, "bf", "tf32", None]
SUB_BYTE = {"u4": ("ub", 1), "s4": ("b", 1), "u2": ("ub", 2), "s2": ("b", 2)}
BITS = {"u4": 4, "s4": 4, "u2": 2, "s2": 2, "ub": 8, "b": 8, "bf8": 8, "uw": 16, "w": 16, "hf": 16, "bf": 16}
BITS |= {"ud": 32, "d": 32, "f": 32, "tf32": 32, "uq": 64, "q": 64, "df": 64}
CONDITIONS = {"eq": 1, "ne": 2, "gt": 3, "ge": 4, "lt": 5, "le": 6, "ov": 8, "un": 9, "eo": 15}
SYNC_FUNCTIONS = {"nop": 0, "allrd": 2, "allwr": 3, "fence": 13, "bar": 14, "host": 15}
PREDICATES = ["", ".anyv", ".allv", ".any2h", ".all2h", ".any4h", ".all4h", ".any8h", ".all8h", ".any16h", ".all16h"]
PREDICATES += [".any32h", ".all32h"]

Json = dict[str, Any]
Field = tuple[int, int]  # high bit, low bit

# Where the indices lie in the 8 bytes: pieces, the highest first.
INDICES: dict[str, dict[str, dict[str, list[Field]]]] = {
    "dg2": {
        "basic": {"control": [(28, 24)], "type": [(34, 30)], "sub": [(39, 35)], "src0": [(51, 48)], "src1": [(55, 52)]},
        "ternary": {"control": [(28, 24)], "source": [(34, 30)], "sub": [(39, 35)]},
    },
    "bmg": {
        "basic": {
            "control": [(22, 18)], "type": [(31, 30), (28, 26)], "sub": [(51, 48)],
            "src0": [(25, 23)], "src1": [(55, 52)],
        },
        "ternary": {"control": [(21, 18)], "source": [(25, 22)], "sub": [(31, 30), (28, 26)]},
    },
}  # fmt: skip
INDICES["pvc"] = INDICES["bmg"]
for layout in INDICES.values():
    layout["dpas"] = layout["ternary"]
OPCODES = {"basic": [0x01, 0x40, 0x41, 0x61, 0x62, 0x65, 0x70], "ternary": [0x5B, 0x72, 0x52, 0x6B], "dpas": [0x59]}


def control_fields(family: str) -> list[Field]:
    """Fields of the full instruction that every control index gives."""
    header = [(18, 16), (21, 19), (23, 22), (27, 24)] if family == "dg2" else [(20, 18), (23, 21), (25, 24), (27, 26)]
    return [*header, (28, 28), (31, 31), (32, 32), (33, 33), (34, 34)]


def fields(family: str, form: str) -> dict[str, list[Field]]:
    """Fields of the full instruction that each index gives; the first one lies lowest in a table's value."""
    low = [] if family == "dg2" else [(33, 33)]
    control = [f for f in control_fields(family) if f not in low]
    if form == "basic":
        types = [(35, 35), (39, 36), (43, 40), (46, 46), (47, 47), (49, 48), (50, 50), (66, 66), (91, 88), (98, 98)]
        src0 = [(45, 44), (65, 64), (80, 80), (83, 81)]
        src1 = [(97, 96), (112, 112), (115, 113), (121, 120)]
        if family == "dg2":
            return {
                "control": [*control, (95, 92)], "type": types, "sub": [(55, 51), (71, 67), (103, 99)],
                "src0": [*src0, (87, 84)], "src1": [*src1, (119, 116)],
            }  # fmt: skip
        return {
            "control": [*control, (95, 92)], "type": types, "sub": [(33, 33), (55, 51), (71, 67), (87, 87)],
            "src0": [*src0, (86, 84)], "src1": [*src1, (103, 99), (118, 116), (119, 119)],
        }  # fmt: skip
    ternary_types = [(38, 36), (39, 39), (42, 40), (82, 80), (90, 88)]
    sub = [(55, 51), (71, 67), (103, 99), (119, 115)]
    common = [(44, 44), (45, 45), (66, 66), (85, 84), (87, 86), (98, 98), (114, 114)]
    regions = [(46, 46), (47, 47), (65, 64), (83, 83), (91, 91), (97, 96), (113, 112)]
    if form == "dpas":
        return {
            "control": [*control, (49, 48), (50, 50), *ternary_types, (95, 92)],
            "source": [(43, 43), *common, (35, 35), *regions],
            "sub": sub,
        }  # fmt: skip
    return {
        "control": [*control, (48, 48), (49, 49), (50, 50), *ternary_types, (95, 92)],
        "source": [(35, 35), (43, 43), *common, *regions],
        "sub": sub,
    }


def put(word: int, pieces: list[Field], value: int) -> int:
    """Write an index into a compacted word."""
    for high, low in reversed(pieces):
        for bit in range(low, high + 1):
            word = word & ~(1 << bit) | (value & 1) << bit
            value >>= 1
    return word


def width(pieces: list[Field]) -> int:
    """Bits of an index or of a table's value."""
    return sum(high - low + 1 for high, low in pieces)


class Observed(dict[int, int]):
    """Bits of the full instruction that one disassembled word shows: bit number -> 0 or 1."""

    def add(self, field: Field | int, value: int | bool | None) -> None:
        """Note that a field has a value; None: not shown."""
        if value is None:
            return
        high, low = (field, field) if isinstance(field, int) else field
        for bit in range(low, high + 1):
            self[bit] = int(value) >> (bit - low) & 1


def log2(value: int) -> int:
    """Of a power of two."""
    return value.bit_length() - 1


STRIDES = {0: 0, 1: 1, 2: 2, 4: 3}
TERNARY_VERTICAL = {0: 0, 1: 1, 4: 2, 8: 3}
MODIFIERS = {"": 0, "a": 1, "n": 2, "an": 3}


def observe_header(o: Observed, e: Json, dg2: bool) -> None:
    """Execution size, mask, flag, predicate, condition."""
    o.add((18, 16) if dg2 else (20, 18), log2(e["es"]))
    o.add((21, 19) if dg2 else (25, 24), e.get("eo", 0) // (4 if dg2 else 8))
    predicate, condition = e.get("pred"), e.get("fm", {}).get("cond")
    code = 0
    if predicate:
        name = predicate.get("func", "")
        code = {"": 1, ".any": 2, ".all": 3}[name] if not dg2 else PREDICATES.index(name) + 1
        o.add(28, bool(predicate.get("inv")))
    o.add((27, 24) if dg2 else (27, 26), code)
    if "freg" in e:
        number, sub = e["freg"].get("r", 0), e["freg"].get("sr", 0)
        if dg2:
            o.add(23, number)
            o.add(22, sub)
        else:
            o.add((23, 22), number)
            o.add(21, sub)
    if condition or e["op"] in ("mad", "csel", "add3"):  # a code that is no condition is not shown either
        o.add((95, 92), CONDITIONS[condition] if condition else 0)
    o.add(31, bool(e.get("wren")))
    options = e.get("opts", [])
    o.add(32, "Atomic" in options)
    if dg2:
        o.add(33, "AccWrEn" in options)


def observe_saturate(o: Observed, e: Json) -> None:
    """IGA prints it only where the operation can saturate."""
    if e["op"] in ("add", "mul", "mov", "mad", "add3", "dpas"):
        o.add(34, bool(e["dst"].get("sat")))


def sub_bytes(operand: Json) -> int | None:
    """Byte of a subregister, if the type is narrow enough to show it."""
    bits = BITS.get(operand.get("type", ""))
    return None if bits is None else operand["reg"].get("sr", 0) * bits // 8


def observe_sub(o: Observed, operand: Json, dg2: bool, field: Field, low: int) -> None:
    """Subregister bits that the operand's type can tell."""
    byte, step = sub_bytes(operand), BITS.get(operand.get("type", ""), 64) // 8
    if byte is None or operand["reg"]["rn"] != "r":
        return
    for bit in range(6):
        if 1 << bit < step:
            continue
        if dg2 and bit < 5:
            o.add(field[1] + bit, byte >> bit & 1)
        elif not dg2:
            if bit == 0 and low:
                o.add(low, byte & 1)
            elif bit > 0:
                o.add(field[1] + bit - 1, byte >> bit & 1)


def observe_basic(e: Json, dg2: bool) -> Observed:
    """Fields of a unary or binary instruction."""
    o = Observed()
    if e["op"] == "sync":
        o.add((95, 92), SYNC_FUNCTIONS[e["subop"]])
        return o
    observe_header(o, e, dg2)
    dst = e["dst"]
    observe_saturate(o, e)
    if dst.get("type") in TYPES:
        o.add((39, 36), TYPES.index(dst["type"]))
    o.add((49, 48), STRIDES.get(dst.get("rgn", {}).get("h", -1)))
    o.add(35, dst["kind"] == "RI")
    if dst["kind"] == "RD":
        o.add(50, dst["reg"]["rn"] == "r")
        observe_sub(o, dst, dg2, (55, 51), 33)
    for i, src in enumerate(e["srcs"][:2]):
        start = 64 + 32 * i
        o.add(46 + i, src["kind"] == "IM")
        type_field = ((43, 40), (91, 88))[i]
        if src["kind"] == "IM":
            o.add(type_field, PACKED[src["type"]] if src["type"] in PACKED else TYPES.index(src["type"]))
            continue
        if src.get("type") in TYPES:
            o.add(type_field, TYPES.index(src["type"]))
        o.add(((45, 44), (121, 120))[i], MODIFIERS["".join(sorted(src.get("mods", "")))])
        region = src.get("rgn", {})
        o.add((start + 19, start + 17), log2(region["w"]) if region.get("w") else None)
        o.add((start + 1, start), STRIDES.get(region.get("h", -1)))
        o.add(start + 16, src["kind"] == "RI")
        vertical = (start + 23, start + 20) if dg2 else (start + 22, start + 20)
        if src["kind"] == "RI":
            o.add(vertical, log2(region["v"]) + 1 if region.get("v") else 0 if "v" in region else 15 if dg2 else 7)
            offset = src.get("aoff", 0)
            if not dg2:
                o.add(start + 23, offset & 1)
                offset >>= 1
            for bit in range(10):
                o.add(start + 2 + bit, offset >> bit & 1)
        else:
            o.add(vertical, log2(region["v"]) + 1 if region.get("v") else 0)
            o.add(start + 2, src["reg"]["rn"] == "r")
            observe_sub(o, src, dg2, (start + 7, start + 3), start + 23)
    return o


def observe_types3(o: Observed, e: Json) -> list[int]:
    """Three-bit types and their class; the sub-byte precisions of dpas."""
    names, precision = [], []
    for operand in [e["dst"], *e["srcs"][:3]]:
        name, bits = SUB_BYTE.get(operand.get("type", ""), (operand.get("type"), 0))
        names.append(name)
        precision.append(bits)
    known = [n for n in names if n in INTEGERS or (n in FLOATS and n)]
    if known:
        is_float = any(n in FLOATS for n in known)
        o.add(39, is_float)
        table = FLOATS if is_float else INTEGERS
        for name, field in zip(names, [(38, 36), (42, 40), (90, 88), (82, 80)], strict=False):
            o.add(field, table.index(name) if name in table and name else None)
    return precision


def observe_ternary(e: Json, dg2: bool) -> Observed:
    """Fields of an instruction with three sources."""
    o = Observed()
    observe_header(o, e, dg2)
    observe_types3(o, e)
    dst = e["dst"]
    observe_saturate(o, e)
    o.add(48, {1: 0, 2: 1}.get(dst.get("rgn", {}).get("h", -1)))
    o.add(50, dst["reg"]["rn"] == "r")
    observe_sub(o, dst, dg2, (55, 51), 0)
    if e["op"] == "bfn":
        table = int(str(e["subop"]), 16)
        o.add((95, 92), table >> 4)
        o.add((87, 84), table & 15)
    for i, src in enumerate(e["srcs"][:3]):
        start = (64, 96, 112)[i]
        if i != 1:
            o.add(46 if i == 0 else 47, src["kind"] == "IM")
        if src["kind"] == "IM":
            continue
        if e["op"] != "bfn":
            o.add(((45, 44), (87, 86), (85, 84))[i], MODIFIERS["".join(sorted(src.get("mods", "")))])
        region = src.get("rgn", {})
        if i == 2:
            o.add((start + 1, start), STRIDES.get(region.get("v", region.get("h", -1))))
        else:
            code = TERNARY_VERTICAL.get(region.get("v", -1))
            if code is not None:
                o.add(((43, 35), (91, 83))[i][0], code >> 1)
                o.add(((43, 35), (91, 83))[i][1], code & 1)
            o.add((start + 1, start), STRIDES.get(region.get("h", -1)))
        o.add(start + 2, src["reg"]["rn"] == "r")
        observe_sub(o, src, dg2, (start + 7, start + 3), 0)
    return o


def observe_dpas(e: Json, dg2: bool) -> Observed:
    """Fields of a dpas."""
    o = Observed()
    observe_header(o, e, dg2)
    precision = observe_types3(o, e)
    depth, repeat = (int(n) for n in e["subop"].split("x"))
    o.add((49, 48), log2(depth))
    o.add((45, 43), repeat - 1)
    observe_saturate(o, e)
    for field, bits, src in ((87, 86), precision[2], e["srcs"][1]), ((85, 84), precision[3], e["srcs"][2]):
        o.add(field, bits if bits or src.get("type") in ("ub", "b") else None)
    operands = zip([e["dst"], *e["srcs"]], (50, 66, 98, 114), ((55, 51), (71, 67), (103, 99), (119, 115)), strict=False)
    for operand, file, sub in operands:
        o.add(file, operand["reg"]["rn"] == "r")
        observe_sub(o, operand, dg2, sub, 0)
    return o


OBSERVE: dict[str, Callable[[Json, bool], Observed]] = {
    "basic": observe_basic,
    "ternary": observe_ternary,
    "dpas": observe_dpas,
}


def disassemble(iga64: str, family: str, words: list[int]) -> list[Json]:
    """IGA's JSON of each word."""
    with tempfile.TemporaryDirectory() as folder:
        code, text = Path(folder, "code"), Path(folder, "text")
        code.write_bytes(b"".join(struct.pack("<Q", w) for w in words))
        options = ["-Xprint-json", "-Xprint-pc", "-Xprint-hex-floats", "-Xno-print-bfnexprs", "--output-on-fail"]
        command = [iga64, "-d", f"-p={PLATFORM[family]}", *options, str(code), "-o", str(text)]
        subprocess.run(command, capture_output=True, check=False)
        # IGA forgets the quotes of this option
        listing = text.read_text(errors="replace").replace(",NoAccSBSet]", "]").replace("[NoAccSBSet]", "[]")
        elements = json.loads(listing, strict=False)["elems"]
    instructions = {e["pc"]: e for e in elements if e["kind"] == "I"}
    return [instructions.get(8 * i, {"op": "illegal"}) for i in range(len(words))]


def measure(iga64: str, family: str, form: str, name: str, rng: random.Random) -> list[int]:
    """One table: the value of every index."""
    pieces = INDICES[family][form][name]
    targets = fields(family, form)[name]
    # subregisters of ternary instructions and dpas are one table, which the narrow types of dpas show better
    opcodes = OPCODES[form] if form == "basic" or name != "sub" else OPCODES["ternary"] + OPCODES["dpas"] * 2
    words, owners = [], []
    for index in range(1 << width(pieces)):
        for _ in range(WORDS_PER_INDEX):
            word = rng.getrandbits(64) & ~0xFF | 0x20000000 | rng.choice(opcodes)
            words.append(put(word, pieces, index))
            owners.append(index)
    wanted = {bit for high, low in targets for bit in range(low, high + 1)}
    votes: list[dict[int, Counter[int]]] = [defaultdict(Counter) for _ in range(1 << width(pieces))]
    for index, e in zip(owners, disassemble(iga64, family, words), strict=True):
        if e["op"] == "illegal":
            continue
        try:
            seen = OBSERVE["dpas" if e["op"] == "dpas" else form](e, family == "dg2")
        except (KeyError, ValueError):
            continue  # a reading without a name, such as an invalid type
        for bit in wanted & seen.keys():
            votes[index][bit][seen[bit]] += 1
    values = []
    for index, vote in enumerate(votes):
        value = position = 0
        for high, low in targets:
            for bit in range(low, high + 1):
                if len(vote[bit]) > 1:
                    print(f"{family} {form} {name} {index}: bit {bit} {dict(vote[bit])}", file=sys.stderr)
                value |= (vote[bit].most_common(1)[0][0] if vote[bit] else 0) << position
                position += 1
        values.append(value)
    return values


def main() -> None:
    """Write the tables to standard output."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--iga64", required=True)
    arguments = parser.parse_args()
    rng = random.Random(1)
    print("// Written by measure_compaction.py. One value per index; compact.cpp says which fields it holds.")
    for family, forms in INDICES.items():
        for form, tables in forms.items():
            for name in tables:
                values = measure(arguments.iga64, family, form, name, rng)
                title = f"k{family.title()}{form.title()}{name.title()}"
                digits = (width(fields(family, form)[name]) + 3) // 4
                print(f"inline constexpr uint64_t {title}[{len(values)}] = {{")
                per_line = 88 // (digits + 4)
                for i in range(0, len(values), per_line):
                    print("    " + " ".join(f"0x{v:0{digits}x}," for v in values[i : i + per_line]))
                print("};")


if __name__ == "__main__":
    main()
