"""Compares the simulator's decoder with Intel's IGA disassembler, instruction by instruction.

    python perf/xesim_decode.py --family bmg kernel.bin ...     # native binaries made by ocloc
    python perf/xesim_decode.py --peers                         # all images of vllm-xpu-kernels, downloaded with pip

Compared: opcode, execution size, channel offset, predicate, flag, condition, saturation, write mask, registers,
regions, types, modifiers, immediates, indirect operands, dpas operands, message descriptors, branch targets,
scoreboard, compaction.
Environment: XEFLASH_SIM_LIBRARY (the simulator's library), XEFLASH_IGA64 or XEFLASH_OCLOC (iga64 beside it), else PATH.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import multiprocessing
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

PEERS = "vllm-xpu-kernels==0.1.16.2"
PEERS_LIBRARY = "libattn_kernels_xe_2.so"
MEMBERS = {"pvc": ("64.12.60.7",), "bmg": ("64.20.1.0", "64.20.2.0", "64.bmg")}  # names in the images' archives
PLATFORM = {"dg2": "xehpg", "pvc": "xehpc", "bmg": "xe2", "ptl": "xe3"}

BITS = {"ub": 8, "b": 8, "bf8": 8, "uw": 16, "w": 16, "hf": 16, "bf": 16, "ud": 32, "d": 32, "f": 32, "tf32": 32}
BITS |= {"uq": 64, "q": 64, "df": 64, "u4": 4, "s4": 4, "u2": 2, "s2": 2}
IMMEDIATE_BITS = BITS | {"v": 32, "uv": 32, "vf": 32}
BRANCHES = {"jmpi", "brd", "if", "brc", "else", "endif", "while", "break", "cont", "halt", "goto", "join"}

Json = dict[str, Any]


def with_types(lib: ctypes.CDLL) -> Callable[[], ctypes.CDLL]:
    """Declares the types of the decoder's functions; returns a function that returns the library."""
    lib.xesim_decode.restype = lib.xesim_opcodes.restype = ctypes.c_void_p
    lib.xesim_decode.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64]
    lib.xesim_expand.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.POINTER(ctypes.c_uint64)]
    lib.xesim_decode_count_errors.restype = ctypes.c_uint64
    lib.xesim_decode_count_errors.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_uint64]
    lib.xesim_free.argtypes = [ctypes.c_void_p]
    lib.xesim_free.restype = None
    return lambda: lib


@cache
def library() -> ctypes.CDLL:
    """Loads the simulator's library."""
    path = os.environ.get("XEFLASH_SIM_LIBRARY")
    if not path:
        from xeflash import sim

        path = str(sim.library_path())
    return with_types(ctypes.CDLL(path))()


def lines_of(pointer: int | None) -> list[Json]:
    """Reads JSON lines from the library, and frees them."""
    if not pointer:
        raise ValueError("the library refused the arguments")
    try:
        return [json.loads(line) for line in ctypes.string_at(pointer).decode().splitlines()]
    finally:
        library().xesim_free(pointer)


def decode(family: str, code: bytes) -> list[Json]:
    """Returns the simulator's reading of machine code."""
    return lines_of(library().xesim_decode(family.encode(), code, len(code)))


def opcodes() -> list[Json]:
    """Returns the simulator's opcode table."""
    return lines_of(library().xesim_opcodes())


def expand(family: str, word: int) -> int | None:
    """Returns the 128 bits of a compacted instruction, or None if it has no meaning."""
    bits = (ctypes.c_uint64 * 2)()
    return bits[0] | bits[1] << 64 if library().xesim_expand(family.encode(), word, bits) else None


def find_iga64() -> list[str] | None:
    """Returns the command that starts iga64, or None if there is none."""
    if path := os.environ.get("XEFLASH_IGA64"):
        return [path]
    if ocloc := os.environ.get("XEFLASH_OCLOC"):
        beside = Path(ocloc).with_name("iga64")
        if beside.is_file():
            return [str(beside)]
    path = shutil.which("iga64")
    return [path] if path else None


def iga(command: list[str], family: str, code: bytes) -> list[Json]:
    """Returns IGA's reading, by its JSON: labels and instructions."""
    options = ["-Xprint-json", "-Xprint-pc", "-Xprint-hex-floats", "-Xprint-bits", "-Xno-print-bfnexprs", "-q"]
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "code"), Path(folder, "json")
        source.write_bytes(code)
        run = [*command, "-d", f"-p={PLATFORM[family]}", *options, "--output-on-fail", "-o", str(target), str(source)]
        done = subprocess.run(run, capture_output=True, text=True, errors="replace", check=False)
        if not target.is_file() or target.stat().st_size == 0:
            raise RuntimeError(f"iga64 -p={PLATFORM[family]} failed: {done.stderr[:500]}")
        text = target.read_text(errors="replace")
    text = text.replace(",NoAccSBSet]", ',"NoAccSBSet"]').replace(
        "[NoAccSBSet]", '["NoAccSBSet"]'
    )  # IGA forgets the quotes
    listing = json.loads(text, strict=False)
    if listing.get("version") != "2.0":
        raise RuntimeError("this iga64 writes JSON of another version: that of libigc2-tools is needed")
    elements: list[Json] = listing["elems"]
    return elements


def why_not(command: list[str] | None, family: str) -> str | None:
    """Returns the reason why this IGA is of no use for the family, or None if it is."""
    if command is None:
        return "no iga64 (set XEFLASH_IGA64)"
    try:
        iga(command, family, struct.pack("<QQ", 0x60, 0))
    except RuntimeError as error:
        return str(error)
    return None


class Comparison:
    """Differences of one instruction: name, IGA's value, the simulator's value."""

    def __init__(self) -> None:
        self.differences: list[tuple[str, Any, Any]] = []

    def same(self, name: str, theirs: Any, mine: Any) -> None:
        """Notes a difference."""
        if theirs != mine:
            self.differences.append((name, theirs, mine))

    def register(self, name: str, theirs: Json, mine: Json, bits: int | None) -> None:
        """Compares file, number and subregister of a register."""
        file, number = theirs["rn"], theirs.get("r", 0)
        self.same(f"{name} file", file, mine["file"])
        if file == "null":
            return
        self.same(f"{name} number", number, mine.get("num"))
        if bits is not None:
            self.same(f"{name} subregister", theirs.get("sr", 0), mine.get("sub", 0) * 8 // bits)

    def immediate(self, name: str, theirs: Json, mine: Json) -> None:
        """Compares type and bits of an immediate."""
        self.same(f"{name} file", "imm", mine["file"])
        if mine["file"] != "imm":
            return
        form = mine.get("form")
        self.same(f"{name} type", theirs.get("type"), form or mine.get("type"))
        mask = (1 << IMMEDIATE_BITS.get(theirs.get("type", "ud"), 64)) - 1
        self.same(f"{name} value", int(theirs["value"], 0) & mask, int(mine["imm"], 16) & mask)

    def operand(self, name: str, theirs: Json, mine: Json) -> None:
        """Compares a destination or a source of an arithmetic instruction."""
        kind = theirs["kind"]
        if kind == "IM":
            self.immediate(name, theirs, mine)
            return
        self.same(f"{name} type", theirs.get("type"), mine.get("type"))
        self.same(
            f"{name} modifiers",
            "".join(sorted(theirs.get("mods", ""))),
            "a" * mine.get("abs", 0) + "n" * mine.get("neg", 0),
        )
        region = theirs.get("rgn", {})
        if kind == "RM":
            self.same(f"{name} number", theirs["reg"].get("r", 0), mine.get("num"))
            self.same(f"{name} mme", theirs.get("mme", "nomme"), f"mme{mine['mme']}" if "mme" in mine else "nomme")
        elif kind == "RI":
            self.same(f"{name} indirect", True, "a" in mine)
            self.same(f"{name} address", theirs["areg"].get("sr", 0), mine.get("a"))
            self.same(f"{name} offset", theirs.get("aoff", 0), mine.get("off"))
            self.same(f"{name} VxH", "v" not in region and name != "dst", bool(mine.get("vxh")))
        else:
            self.same(f"{name} indirect", False, "a" in mine)
            self.register(name, theirs["reg"], mine, BITS.get(mine.get("type", "")))
        if name == "dst":
            self.same("dst stride", max(region.get("h", 1), 1), mine["h"])
        elif region and kind != "RM":
            for part in ("v", "w", "h"):
                if part in region:
                    self.same(f"{name} region {part}", region[part], mine[part])


def compare_send(c: Comparison, theirs: Json, mine: Json) -> None:
    """Compares the registers and descriptors of a message."""
    send = mine["send"]
    c.same("sfid", theirs["subop"], send["sfid"])
    address, data, exdesc, desc = theirs["srcs"]
    base = address.get("areg") or address["reg"]
    c.same("dst", theirs["dst"]["reg"]["rn"], mine["dst"]["file"])
    if mine["dst"]["file"] == "r":
        c.same("dst number", theirs["dst"]["reg"].get("r", 0), mine["dst"]["num"])
    c.same("src0", base["rn"], mine["src"][0]["file"])
    c.same("src0 number", base.get("r", 0), mine["src"][0]["num"])
    c.same("src1", data["reg"]["rn"], mine["src"][1]["file"])
    if mine["src"][1]["file"] == "r":
        c.same("src1 number", data["reg"].get("r", 0), mine["src"][1]["num"])
    if data.get("len", -1) >= 0:
        c.same("src1 length", data["len"], send["len"])
    if desc["kind"] == "IM":
        c.same("desc", (int(desc["value"], 0), 0), (send["desc"], send.get("desc_a0", 0)))
    else:
        c.same("desc in a0", 1, send.get("desc_a0", 0))
    if exdesc["kind"] == "IM":
        c.same("exdesc", (int(exdesc["value"], 0) & ~0x7FF, None), (send["exdesc"] & ~0x7FF, send.get("exdesc_a0")))
    else:
        c.same("exdesc in a0", exdesc["reg"].get("sr", 0) * 4, send.get("exdesc_a0"))
    options = theirs.get("opts", [])
    c.same("EOT", "EOT" in options, bool(send.get("eot")))
    c.same("ExBSO", "ExBSO" in options, bool(send.get("bso")))


def compare_header(c: Comparison, theirs: Json, mine: Json) -> None:
    """Compares the fields that all instructions share."""
    c.same("exec size", theirs["es"], mine["es"])
    c.same("channel offset", theirs.get("eo", 0), mine["eo"])
    c.same("write mask", bool(theirs.get("wren")), bool(mine.get("nomask")))
    predicate = theirs.get("pred")
    c.same("predicate", predicate.get("func", "") if predicate is not None else None, mine.get("pred"))
    if predicate:
        c.same("predicate inverse", bool(predicate.get("inv")), bool(mine.get("pinv")))
    if "freg" in theirs:
        c.same("flag", 2 * theirs["freg"].get("r", 0) + theirs["freg"].get("sr", 0), mine["flag"])
    condition = theirs.get("fm", {}).get("cond")
    c.same("condition", condition, mine.get("cond"))
    options = theirs.get("opts", [])
    c.same("atomic", "Atomic" in options, bool(mine.get("atomic")))
    c.same("AccWrEn", "AccWrEn" in options, bool(mine.get("accwr")))
    waits = [theirs["regDist"]] if "regDist" in theirs else []
    if token := theirs.get("sbid"):
        waits.append(f"${token['id']}{token.get('func', '')}")
    c.same("scoreboard", ",".join(waits), mine.get("waits", ""))


def compare(theirs: Json, mine: Json, labels: dict[str, int]) -> list[tuple[str, Any, Any]]:
    """Returns the differences between the two readings of one instruction."""
    c = Comparison()
    c.same("opcode", theirs["op"], mine.get("op", mine.get("error")))
    c.same("compacted", "Compacted" in theirs.get("opts", []), mine["size"] == 8)
    op = mine.get("op")
    if c.differences or op in ("nop", "illegal"):
        return c.differences
    compare_header(c, theirs, mine)
    sources = theirs.get("srcs", [])
    if op in ("send", "sendc"):
        compare_send(c, theirs, mine)
    elif op == "sync":
        c.same("function", theirs["subop"], mine["fn"])
        if sources and sources[0]["kind"] == "IM":
            c.same("sync value", int(sources[0]["value"], 0), int(mine["src"][0].get("imm", "-1"), 16))
        elif sources:
            c.register("sync source", sources[0]["reg"], mine["src"][0], None)
    elif op in BRANCHES or op in ("call", "calla"):
        targets = [labels[s["target"]] for s in sources if s["kind"] == "LB"]
        stated = [mine["ip"] + mine["jip"], mine["ip"] + mine.get("uip", 0)]
        c.same("targets", targets, stated[: len(targets)])
        if op == "call":
            c.register("dst", theirs["dst"]["reg"], mine["dst"], 32)
    elif op == "ret":
        c.register("src0", sources[0]["reg"], mine["src"][0], 32)
    elif op in ("dpas", "dpasw"):
        c.same("shape", theirs["subop"], f"{mine['depth']}x{mine['repeat']}")
        for name, a, b in zip(
            ("dst", "src0", "src1", "src2"), [theirs["dst"], *sources], [mine["dst"], *mine["src"]], strict=True
        ):
            c.same(f"{name} type", a.get("type"), b.get("type"))
            c.register(name, a["reg"], b, BITS.get(b.get("type", "")))
    else:
        if op == "math":
            c.same("function", theirs["subop"], mine["fn"])
        if op == "bfn":
            c.same("table", int(theirs["subop"], 16), mine["lut"])
        c.same("saturate", bool(theirs["dst"].get("sat")), bool(mine.get("sat")))
        c.operand("dst", theirs["dst"], mine["dst"])
        c.same("sources", len(sources), len(mine["src"]))
        for i, (a, b) in enumerate(zip(sources, mine["src"], strict=False)):
            c.operand(f"src{i}", a, b)
    return c.differences


class Result:
    """Counts over many instructions."""

    def __init__(self) -> None:
        self.instructions = self.compacted = self.mismatches = self.kernels = 0
        self.kinds: Counter[str] = Counter()
        self.examples: dict[str, str] = {}

    def add(self, other: Result) -> None:
        """Adds another result's counts to this one."""
        self.instructions += other.instructions
        self.compacted += other.compacted
        self.mismatches += other.mismatches
        self.kernels += other.kernels
        self.kinds += other.kinds
        self.examples = {**other.examples, **self.examples}


@cache
def agreed() -> set[tuple[str, str]]:
    """Returns the set of (family, bits) that compared equal; a reading depends on nothing else, except for branches."""
    return set()


def compare_text(command: list[str], family: str, code: bytes) -> Result:
    """Compares both readings of one kernel's machine code."""
    result = Result()
    result.kernels = 1
    mine = {e["ip"]: e for e in decode(family, code)}
    elements = iga(command, family, code)
    labels = {e["symbol"]: e["pc"] for e in elements if e["kind"] == "L"}
    theirs = [e for e in elements if e["kind"] == "I"]
    for e in theirs:
        result.instructions += 1
        m = mine.get(e["pc"])
        key = (family, e.get("encoding", ""))
        differences: list[tuple[str, Any, Any]] = []
        if m is None:
            differences = [("position", e["pc"], None)]
        else:
            result.compacted += m["size"] == 8
            if key not in agreed():
                differences = compare(e, m, labels)
        if not differences and e["op"] not in BRANCHES and e["op"] not in ("call", "calla"):
            agreed().add(key)
        result.mismatches += bool(differences)
        for name, a, b in differences:
            kind = f"{family} {e['op']}: {name}"
            result.kinds[kind] += 1
            example = f"at {e['pc']:#x}, IGA {a!r}, simulator {b!r}, {e.get('encoding', '')}, {m and m.get('text')}"
            result.examples.setdefault(kind, example)
    # after the last instruction a section may be filled up with less than an instruction
    if len(theirs) != sum("op" in m or e + 16 <= len(code) for e, m in mine.items()):
        result.mismatches += 1
        result.kinds[f"{family}: number of instructions"] += 1
    return result


def texts(zebin: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields the kernels of a native binary: name, machine code."""
    if zebin[:4] != b"\x7fELF":
        raise ValueError("not an ELF file")
    (table,) = struct.unpack_from("<Q", zebin, 40)
    size, count, names = struct.unpack_from("<HHH", zebin, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", zebin, table + i * size) for i in range(count)]
    for section in sections:
        start = sections[names][4] + section[0]
        name = zebin[start : zebin.index(b"\0", start)].decode()
        if name.startswith(".text") and section[5]:
            yield name.removeprefix(".text").removeprefix("."), zebin[section[4] : section[4] + section[5]]


def members(archive: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields the files of an `ar` archive."""
    position = 8
    while position + 60 <= len(archive) and archive[position + 58 : position + 60] == b"`\n":
        size = int(archive[position + 48 : position + 58])
        yield archive[position : position + 16].decode().rstrip(" /"), archive[position + 60 : position + 60 + size]
        position += 60 + size + size % 2


def peers_images(folder: Path) -> list[tuple[int, int]]:
    """Downloads and unpacks the peers' library; returns offset and size of its archives of binaries."""
    target = folder / PEERS_LIBRARY
    if not target.is_file():
        subprocess.run(
            [
                sys.executable,
                "-m",
                "pip",
                "download",
                "-q",
                "--no-deps",
                "--only-binary=:all:",
                "-d",
                str(folder),
                PEERS,
            ],
            check=True,
        )
        wheel = next(folder.glob("vllm_xpu_kernels-*.whl"))
        with zipfile.ZipFile(wheel) as z:
            name = next(n for n in z.namelist() if n.endswith("/" + PEERS_LIBRARY))
            with z.open(name) as source, target.open("wb") as out:
                shutil.copyfileobj(source, out)
    data = target.read_bytes()
    starts, position = [], data.find(b"!<arch>\n")
    while position >= 0:
        starts.append(position)
        position = data.find(b"!<arch>\n", position + 8)
    return [(a, b - a) for a, b in itertools.pairwise([*starts, len(data)])]


def run_image(job: tuple[list[str], Path, int, int]) -> tuple[dict[str, Result], float]:
    """Compares one image of the peers, for all families; also returns the seconds that the simulator's decoder took."""
    command, path, offset, size = job
    results: dict[str, Result] = {}
    seconds = 0.0
    with path.open("rb") as file:
        file.seek(offset)
        archive = file.read(size)
    for name, content in members(archive):
        family = next((f for f, names in MEMBERS.items() if name in names), None)
        if family is None or family in results or content[:4] != b"\x7fELF":
            continue  # the binaries for the kinds of BMG are the same code
        for _, code in texts(content):
            began = time.perf_counter()
            library().xesim_decode_count_errors(family.encode(), code, len(code))
            seconds += time.perf_counter() - began
            results.setdefault(family, Result()).add(compare_text(command, family, code))
    return results, seconds


def report(totals: dict[str, Result]) -> int:
    """Prints the table; the number of mismatches."""
    print(f"{'device':8}{'kernels':>9}{'instructions':>14}{'compacted':>12}{'mismatches':>12}")
    for family, r in sorted(totals.items()):
        print(f"{family:8}{r.kernels:9}{r.instructions:14}{r.compacted:12}{r.mismatches:12}")
    for r in totals.values():
        for kind, count in r.kinds.most_common(20):
            print(f"  {count:8} {kind}: {r.examples.get(kind, '')}")
    return sum(r.mismatches for r in totals.values())


def main() -> int:
    """Runs the command line; returns 1 if anything differs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path, help="zebins")
    parser.add_argument("--family", choices=sorted(PLATFORM), default="bmg", help="of the files")
    parser.add_argument("--peers", action="store_true", help=f"the images of {PEERS}")
    parser.add_argument(
        "--cache", type=Path, default=Path(tempfile.gettempdir(), "xesim_decode"), help="folder for the download"
    )
    parser.add_argument("--every", type=int, default=1, help="only every n-th image")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    command = find_iga64()
    for family in MEMBERS if arguments.peers else [arguments.family]:
        if reason := why_not(command, family):
            parser.error(reason)
    assert command is not None
    totals: dict[str, Result] = {}
    for path in arguments.files:
        for _, code in texts(path.read_bytes()):
            totals.setdefault(arguments.family, Result()).add(compare_text(command, arguments.family, code))
    seconds = 0.0
    if arguments.peers:
        arguments.cache.mkdir(parents=True, exist_ok=True)
        images = peers_images(arguments.cache)[:: arguments.every]
        jobs = [(command, arguments.cache / PEERS_LIBRARY, offset, size) for offset, size in images]
        with multiprocessing.Pool(arguments.jobs) as pool:
            for results, spent in pool.imap_unordered(run_image, jobs):
                seconds += spent
                for family, r in results.items():
                    totals.setdefault(family, Result()).add(r)
    mismatches = report(totals)
    count = sum(r.instructions for r in totals.values())
    if seconds:
        print(f"decoding alone: {seconds:.2f} s, {1e9 * seconds / count:.0f} ns per instruction")
    return int(mismatches != 0)


if __name__ == "__main__":
    sys.exit(main())
