"""Runs another project's attention kernels, as its wheel ships them, on the simulated GPU, against float64.

    python perf/xesim_peers.py                          # every case on PVC and BMG; downloads the wheel once (150 MB)
    python perf/xesim_peers.py --only decode --device bmg --check none

The kernels (vllm-xpu-kernels) run on real cards with known results: what they do wrong here, the simulator does wrong.
Column "of bound": the largest error of O as a share of the most that rounding P and O to 16 bits can do to an element,
    u (P|V| + |O|), one more P|V| if the results of splits are rounded; u = 2^-11 (fp16) or 2^-8 (bf16).
Environment: XEFLASH_SIM_LIBRARY (the simulator's library), else the installed one.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from peers_reference import Bits, Floats, Result, Window, attention, decode, encode, joined, merged, nan_bits
from xeflash.sim.library import load_library
from xeflash.sim.machine import Array, Fault, LocalMemory, Machine, Module
from xesim_decode import MEMBERS, PEERS, PEERS_LIBRARY, members, peers_images

Where = tuple[int, int]  # a kernel: number of its image in the library, number in the image

LOG2E = 1.4426950408889634
SLM_BYTES = 65536  # the launch adds these to a kernel's own local memory
SPLIT_FROM = 32  # blocks of keys: shorter sequences are not split
LSE_TOLERANCE = 1e-5  # fp32 sums of exponentials that are right to 4 ulp
SLACK = 1e-5  # the same in O, as a share of P|V|


@dataclass(frozen=True)
class Case:
    """A problem and the kernel that solves it."""

    name: str
    kind: str  # prefill, decode or reduce: which Params the kernel takes
    kernel: Where
    dtype: str
    dim: int
    heads: tuple[int, int]  # heads of Q; heads of K and V
    queries: tuple[int, ...]  # per sequence
    keys: tuple[int, ...]
    kv: str = ""  # format of K and V, if it is not dtype
    sub_groups: int = 8
    rows: int = 128  # queries of a group; decode: heads of a group, see key_block for its keys
    key_block: int = 64
    causal: bool = False
    window: Window | None = None
    sink: bool = False
    page: int = 0  # keys of a page; 0: K and V are not paged
    lse: bool = False
    splits: int = 1
    work_list: bool = False
    reduce: Where | None = None  # the kernel that joins the splits
    without: str = ""  # a check that stays off; why, is in note
    note: str = ""


H64: dict[str, Any] = {"dim": 64, "heads": (4, 2)}
H256: dict[str, Any] = {"dim": 256, "heads": (2, 1), "sub_groups": 32, "rows": 256}
DECODE: dict[str, Any] = {"dim": 64, "heads": (8, 2), "queries": (1, 1), "page": 64, "sub_groups": 4, "lse": True}
CASES = (
    Case("prefill fp16", "prefill", (144, 0), "fp16", queries=(200, 37), keys=(333, 64), **H64),
    Case("prefill fp16 causal", "prefill", (142, 0), "fp16", queries=(150, 64), keys=(150, 200), causal=True, **H64),
    Case("prefill bf16 causal", "prefill", (143, 0), "bf16", queries=(150, 64), keys=(150, 200), causal=True, **H64),
    Case("prefill fp8 e4m3", "prefill", (144, 1), "fp16", queries=(130, 9), keys=(200, 77), kv="e4m3", **H64),
    Case("prefill fp8 e5m2", "prefill", (144, 2), "fp16", queries=(130, 9), keys=(200, 77), kv="e5m2", **H64),
    Case(
        "prefill e4m3 dim 80", "prefill", (94, 1), "fp16", 80, (2, 1), queries=(73, 5), keys=(134, 130), kv="e4m3",
        without="block2d", note="K of the second sequence starts inside of a 64-byte line: wider than its pitch",
    ),
    Case(
        "prefill bf16 paged sink", "prefill", (134, 0), "bf16",
        queries=(140, 3), keys=(300, 65), page=64, sink=True, **H64,
    ),
    Case(
        "prefill fp16 paged causal lse", "prefill", (146, 0), "fp16",
        queries=(100, 270), keys=(177, 270), page=64, causal=True, lse=True, **H256,
    ),
    Case(
        "prefill fp16 paged window", "prefill", (150, 0), "fp16",
        queries=(100,), keys=(300,), page=64, window=(70, 20), **H256,
    ),
    Case(
        "prefill e4m3 spilling", "prefill", (146, 1), "fp16",
        queries=(60,), keys=(130,), kv="e4m3", page=64, causal=True, lse=True, **H256,
    ),
    Case(
        "prefill e5m2 spilling", "prefill", (146, 2), "fp16",
        queries=(60,), keys=(130,), kv="e5m2", page=64, causal=True, lse=True, **H256,
    ),
    Case(
        "reduce fp16 window", "reduce", (0, 0), "fp16", 96, (4, 2), (1, 1), (64 * 44, 64 * 33),
        splits=8, sub_groups=4, lse=True, window=(64 * 41, 0), note="one split is empty",
    ),
    Case("decode fp16", "decode", (17, 0), "fp16", keys=(200, 65), **DECODE),
    Case("decode e4m3", "decode", (17, 1), "fp16", keys=(200, 65), kv="e4m3", **DECODE),
    Case(
        "decode e4m3 spilling window", "decode", (23, 1), "fp16",
        keys=(300, 65), kv="e4m3", window=(133, 0), **(DECODE | {"dim": 256}),
    ),
    Case(
        "decode bf16 split, reduce", "decode", (17, 3), "bf16",
        keys=(64 * 33 - 5, 100), splits=4, reduce=(17, 4), **DECODE,
    ),
    Case(
        "decode bf16 window split, reduce", "decode", (11, 3), "bf16",
        keys=(64 * 45, 100), window=(64 * 37 + 3, 0), splits=4, reduce=(11, 4), **DECODE,
    ),
    Case("decode bf16 sink window", "decode", (6, 0), "bf16", keys=(300, 65), sink=True, window=(133, 0), **DECODE),
    Case(
        "decode bf16 work list, reduce", "decode", (17, 3), "bf16",
        keys=(64 * 5 - 9, 130), splits=3, work_list=True, reduce=(17, 4), **DECODE,
    ),
)  # fmt: skip

CHECKS = ("uninit", "host", "deferred", "slm-races", "global-races", "interleave", "block2d", "math")

# The fields of Params: offset and struct format. A tensor is a pointer and three strides.
TENSOR = "Qiii"
SHAPE = {
    "batch": (0, "i"), "q_heads": (4, "i"), "kv_heads": (8, "i"), "max_q": (16, "i"), "cu_q": (24, "Q"),
    "max_kv": (40, "i"), "kv": (48, "Q"), "head_qk": (64, "i"), "head_vo": (68, "i"),
}  # fmt: skip
PARAMS: dict[str, dict[str, tuple[int, str]]] = {
    "prefill": SHAPE | {
        "Q": (72, TENSOR), "K": (96, TENSOR), "V": (120, TENSOR), "O": (144, TENSOR),
        "sink": (168, "Q"), "lse": (176, "Q"), "lse_stride": (184, "i"),
        "scale": (200, "f"), "k_scale": (208, "Q"), "v_scale": (216, "Q"),
        "pages": (224, "Q"), "page_size": (232, "i"), "max_pages": (236, "i"), "total_kv": (240, "i"),
        "left": (244, "i"), "right": (248, "i"), "page_stride": (252, "i"),
        "grid": (260, "3i"), "by_heads": (272, "iIi"),
    },
    "decode": SHAPE | {
        "Q": (72, TENSOR), "K": (96, TENSOR), "V": (120, TENSOR), "O": (144, TENSOR), "partial_lse": (168, TENSOR),
        "sink": (192, "Q"), "splits_of": (208, "Q"), "lse": (216, "Q"), "lse_stride": (224, "i"),
        "scale": (232, "f"), "k_scale": (240, "Q"), "v_scale": (248, "Q"),
        "pages": (256, "Q"), "page_size": (264, "i"), "max_pages": (268, "i"), "total_kv": (272, "i"),
        "left": (276, "i"), "right": (280, "i"), "page_stride": (284, "i"), "grid": (296, "3i"),
        "by_heads": (308, "iIi"), "by_sequences": (320, "iIi"), "splits": (332, "i"),
        "work": (336, "Q"), "work_items": (344, "i"),
    },
    "reduce": SHAPE | {
        "O": (72, TENSOR), "partial": (96, TENSOR), "partial_lse": (120, TENSOR), "left": (140, "i"),
        "splits_of": (152, "Q"), "lse": (160, "Q"), "lse_stride": (168, "i"),
        "grid": (176, "3i"), "by_heads": (188, "iIi"), "splits": (200, "i"),
    },
}  # fmt: skip
PARAMS_BYTES = {"prefill": 288, "decode": 352, "reduce": 208}


def pack(kind: str, values: Mapping[str, Any]) -> bytes:
    """Packs Params with these fields; the others are zero."""
    data = bytearray(PARAMS_BYTES[kind])
    for name, value in values.items():
        offset, form = PARAMS[kind][name]
        parts = value if isinstance(value, tuple) else (value,)
        struct.pack_into("<" + form, data, offset, *(p.address if isinstance(p, Array) else p for p in parts))
    return bytes(data)


def divider(d: int) -> tuple[int, int, int]:
    """Returns division by d as multiplication: d, ceil(2^(31 + s) / d), s - 1 with s = ceil(log2 d)."""
    s = (d - 1).bit_length()
    return (1, 0, 0) if d == 1 else (d, -(-(1 << (31 + s)) // d), s - 1)


# The simulated machine.


class Peers:
    """The wheel's library, its images and their kernels."""

    def __init__(self, folder: Path) -> None:
        """Downloads the library, unless the folder has it."""
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / PEERS_LIBRARY
        self.images = peers_images(folder)

    @cache  # noqa: B019  one object lives as long as the program
    def binary(self, device: str, image: int) -> bytes:
        """Returns the native binary of an image for a device."""
        offset, size = self.images[image]
        with self.path.open("rb") as file:
            file.seek(offset)
            archive = file.read(size)
        return next(c for name, c in members(archive) if name in MEMBERS[device] and c[:4] == b"\x7fELF")

    @cache  # noqa: B019
    def module(self, device: str, image: int) -> Module:
        """Loads an image."""
        return Machine(device).load(self.binary(device, image))

    def kernel(self, device: str, where: Where, kind: str) -> dict[str, Any]:
        """Returns the binary's description of a kernel; refuses one that takes other Params than expected."""
        binary = self.binary(device, where[0])
        library = load_library()
        text = library.xesim_describe(device.encode(), binary, ctypes.c_uint64(len(binary)))
        described = json.loads(ctypes.string_at(text))
        library.xesim_free(ctypes.c_void_p(text))
        kernel: dict[str, Any] = described["kernels"][where[1]]
        taken = max(p["source_offset"] + p["size"] for p in kernel["payload"] if p["index"] == 0)
        if taken != PARAMS_BYTES[kind]:
            raise ValueError(f"kernel {where} takes {taken} bytes of Params, {kind} has {PARAMS_BYTES[kind]}")
        return kernel


class Run:
    """One case on one device: memory, launches, errors."""

    def __init__(self, case: Case, device: str, peers: Peers) -> None:
        """Draws the arrays of a case and puts them on the device."""
        self.case, self.device, self.peers = case, device, peers
        self.machine = Machine(device)
        self.random = np.random.default_rng(zlib.crc32(case.name.encode()))
        self.instructions = self.spilled = self.narrow = 0
        self.kept: list[Array] = []  # arrays that Params point to
        self.total_q = sum(case.queries)
        self.cu_q = self.device_array(np.cumsum([0, *case.queries], dtype=np.int32))
        self.out = self.device_array(np.full((self.total_q, case.heads[0], case.dim), 0x7FFF, np.uint16))  # NaN
        self.lse = self.device_array(np.full((case.heads[0], self.total_q), np.nan, np.float32))
        self.scale = case.dim**-0.5

    def device_array(self, like: np.ndarray[Any, Any]) -> Array:
        """Copies to the device, for as long as this object lives."""
        self.kept.append(self.machine.array(like))
        return self.kept[-1]

    def numbers(self, form: str, *shape: int) -> Bits:
        """Draws random numbers of a format."""
        return encode(form, self.random.standard_normal(shape))

    def launch(self, where: Where, kind: str, groups: tuple[int, int, int], values: Mapping[str, Any]) -> None:
        """Runs one kernel to its end and counts its instructions."""
        kernel = self.peers.kernel(self.device, where, kind)
        library = load_library()
        library.xesim_clear_launches()
        local = (16 * self.case.sub_groups, 1, 1)
        arguments = [pack(kind, values), LocalMemory(SLM_BYTES)]
        self.peers.module(self.device, where[0]).launch(kernel["name"], groups, local, arguments)
        for record in json.loads(library.xesim_last_launches()):
            self.instructions += record["instructions"]
            self.spilled += record["scratch_written"]
            self.narrow += record["block2d_small_surfaces"]

    def shape(self) -> dict[str, Any]:
        """Returns the fields that all kernels have, except the lengths of K."""
        c = self.case
        return {
            "batch": len(c.queries), "q_heads": c.heads[0], "kv_heads": c.heads[1], "max_q": max(c.queries),
            "cu_q": self.cu_q, "max_kv": max(c.keys), "head_qk": c.dim, "head_vo": c.dim,
            "lse": self.lse if c.lse else 0, "lse_stride": self.total_q,
        }  # fmt: skip

    def strides(self, heads: int) -> tuple[int, int, int]:
        """Returns strides of [token, head, d] in elements: token, head, batch (0, as sequences are packed)."""
        return heads * self.case.dim, self.case.dim, 0

    def keys_and_values(self) -> tuple[dict[str, Any], list[Floats], list[Floats]]:
        """Puts K and V into memory, packed or in pages in random order; returns fields, and values per sequence."""
        c = self.case
        form = c.kv or c.dtype
        scales = (1.25, 0.75) if c.kv else (1.0, 1.0)  # fp8 numbers times these are exact in 16 bits
        K, V = (self.numbers(form, sum(c.keys), c.heads[1], c.dim) for _ in "KV")
        bounds = np.cumsum(c.keys)[:-1]
        values = [list(np.split(decode(form, x) * s, bounds)) for x, s in zip((K, V), scales, strict=True)]
        fields: dict[str, Any] = {"left": -1, "right": -1, "total_kv": sum(c.keys)}
        if c.window:
            fields |= {"left": c.window[0], "right": c.window[1]}
        lengths = list(c.keys) if c.page else np.cumsum([0, *c.keys]).tolist()
        fields["kv"] = self.device_array(np.array(lengths, np.int32))
        if c.page:
            fields |= self.paged(form, [np.split(x, bounds) for x in (K, V)])
        else:
            fields |= {name: (self.device_array(x), *self.strides(c.heads[1])) for name, x in (("K", K), ("V", V))}
        if c.kv:
            scale_arrays = [self.device_array(np.array([s], np.float32)) for s in scales]
            fields |= {"k_scale": scale_arrays[0], "v_scale": scale_arrays[1]}
        return fields, values[0], values[1]

    def paged(self, form: str, tensors: list[list[Bits]]) -> dict[str, Any]:
        """Makes caches of pages.

        Tails of pages hold finite numbers, pages that nobody owns hold NaN.
        """
        c = self.case
        counts = [-(-n // c.page) for n in c.keys]
        total = sum(counts) + 3
        order = self.random.permutation(total)
        table: Bits = np.full((len(c.keys), max(counts)), order[-1], np.int32)
        caches = [nan_bits(form, (total, c.page, c.heads[1], c.dim)) for _ in tensors]
        first = 0
        for b, count in enumerate(counts):
            table[b, :count] = order[first : first + count]
            for cache_of, sequences in zip(caches, tensors, strict=True):
                page = self.numbers(form, count * c.page, c.heads[1], c.dim)
                page[: c.keys[b]] = sequences[b]
                cache_of[table[b, :count]] = page.reshape(count, c.page, c.heads[1], c.dim)
            first += count
        seq, head, _ = self.strides(c.heads[1])
        stride = (seq, head, c.page * seq)
        return {
            "K": (self.device_array(caches[0]), *stride), "V": (self.device_array(caches[1]), *stride),
            "pages": self.device_array(table), "page_size": c.page, "max_pages": table.shape[1],
            "total_kv": total * c.page, "page_stride": c.page,
        }  # fmt: skip

    def attend(self) -> Result:
        """Runs prefill or decode (and its reduction); returns what O and the LSE should be."""
        c = self.case
        q_bits = self.numbers(c.dtype, self.total_q, c.heads[0], c.dim)
        fields, K, V = self.keys_and_values()
        sink_bits = self.numbers(c.dtype, c.heads[0])
        fields |= self.shape() | {
            "Q": (self.device_array(q_bits), *self.strides(c.heads[0])), "O": (self.out, *self.strides(c.heads[0])),
            "scale": self.scale * LOG2E, "sink": self.device_array(sink_bits) if c.sink else 0,
        }  # fmt: skip
        if c.kind == "prefill":
            self.prefill(fields)
        else:
            self.decode(fields)
        Q = np.split(decode(c.dtype, q_bits), np.cumsum(c.queries)[:-1])
        sink = decode(c.dtype, sink_bits) if c.sink else None
        window = c.window or (max(c.keys), 0 if c.causal else max(c.keys))
        return joined([attention(q, k, v, self.scale, window, sink) for q, k, v in zip(Q, K, V, strict=True)])

    def prefill(self, fields: dict[str, Any]) -> None:
        """Launches a group for `rows` queries of a head."""
        c = self.case
        grid = (1, -(-max(c.queries) // c.rows), len(c.queries) * c.heads[0])
        self.launch(c.kernel, "prefill", grid, fields | {"grid": grid, "by_heads": divider(c.heads[0])})

    def decode(self, fields: dict[str, Any]) -> None:
        """Launches a group for a split of the keys of a head of K, and then joins the splits."""
        c = self.case
        batch, heads = len(c.queries), c.heads[1]
        grid = (1, 1, batch * heads * c.splits)
        fields |= {"splits": c.splits, "by_heads": divider(heads), "by_sequences": divider(batch * heads)}
        if c.work_list:
            counts, items = self.work()
            fields |= {"work": self.device_array(items), "work_items": len(items)}
            fields["splits_of"] = self.device_array(counts)
            grid = (1, 1, len(items) * heads)
        if c.splits > 1:
            partial: Bits = np.full((batch, c.splits, c.heads[0], c.dim), 0x7FFF, np.uint16)
            fields["O"] = (self.device_array(partial), *self.strides(c.heads[0] * c.splits))
        partial_lse = self.device_array(np.full((batch, c.heads[0], c.splits), np.nan, np.float32))
        fields["partial_lse"] = (partial_lse, c.heads[0] * c.splits, c.splits, 0)
        self.launch(c.kernel, "decode", grid, fields | {"grid": grid})
        if c.reduce:
            self.join(c.reduce, {"partial": fields["O"], "partial_lse": fields["partial_lse"]}, fields)

    def work(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Returns the splits of each sequence and the list of {sequence, first block, blocks, split}, evenly cut."""
        c = self.case
        counts, items = [], []
        for b, keys in enumerate(c.keys):
            blocks = -(-keys // c.key_block)
            cuts = np.linspace(0, blocks, min(c.splits, blocks) + 1).astype(int)
            counts.append(len(cuts) - 1)
            items += [(b, first, last - first, i) for i, (first, last) in enumerate(pairwise(cuts))]
        return np.array(counts, np.int32), np.array(items, np.int32)

    def join(self, where: Where, partial: Mapping[str, Any], known: Mapping[str, Any]) -> None:
        """Launches a group for each query and head."""
        c = self.case
        grid = (max(c.queries), c.heads[0], len(c.queries))
        fields = self.shape() | {k: known[k] for k in ("kv", "splits_of") if k in known} | dict(partial)
        fields |= {"O": (self.out, *self.strides(c.heads[0])), "splits": c.splits}
        fields["left"] = c.window[0] if c.window else -1
        self.launch(where, "reduce", grid, fields | {"grid": grid, "by_heads": divider(c.heads[0])})

    def reduce(self) -> Result:
        """Runs the reduction alone on random splits; those without keys hold NaN, which must not be seen."""
        c = self.case
        batch = len(c.queries)
        partial = self.numbers(c.dtype, batch, c.splits, c.heads[0], c.dim)
        lse = self.random.standard_normal((batch, c.heads[0], c.splits)).astype(np.float32)
        results = []
        for b, keys in enumerate(c.keys):
            left = c.window[0] if c.window else keys
            blocks = -(-keys // c.key_block) - max(keys - 1 - left, 0) // c.key_block
            used = 1 if blocks < SPLIT_FROM else -(-blocks // -(-blocks // c.splits))
            results.append(merged(decode(c.dtype, partial[b, :used]), lse[b, :, :used].astype(np.float64)))
            partial[b, used:], lse[b, :, used:] = 0x7FFF, np.nan
        tensors = {
            "partial": (self.device_array(partial), *self.strides(c.heads[0] * c.splits)),
            "partial_lse": (self.device_array(lse), c.heads[0] * c.splits, c.splits, 0),
        }
        self.join(c.kernel, tensors, {"kv": self.device_array(np.array(c.keys, np.int32))})
        return joined(results)

    def compare(self, want: Result) -> tuple[float, float, float | None]:
        """Returns the largest error of O, the largest share of an error's limit, and the largest error of the LSE."""
        c = self.case
        u = 2.0**-11 if c.dtype == "fp16" else 2.0**-8
        error = np.abs(decode(c.dtype, self.out.view()) - want.O)
        roundings = 0 if c.kind == "reduce" else 1 + (c.splits > 1)  # roundings of P, and of partial results
        allowed = u * (roundings * want.PV + np.abs(want.O)) + SLACK * want.PV + 2.0**-25  # half the least fp16
        lse = float(np.max(np.abs(self.lse.view() - want.lse))) if c.lse else None
        return float(np.max(error)), float(np.max(error / allowed)), lse


def set_checks(text: str) -> None:
    """Sets what the simulator checks from now on."""
    library = load_library()
    library.xesim_set_check.restype = ctypes.c_char_p
    library.xesim_last_launches.restype = ctypes.c_char_p
    if problem := library.xesim_set_check(text.encode()):
        raise SystemExit(problem.decode())


def note_of(run: Run) -> str:
    """Returns what is special about a row."""
    notes = (
        f"without {run.case.without}" if run.case.without else "",
        run.case.note,
        f"{run.spilled} bytes spilled" if run.spilled else "",
        f"{run.narrow} 2D blocks of surfaces under 64 bytes" if run.narrow else "",
    )
    return "; ".join(note for note in notes if note)


def run_case(case: Case, device: str, peers: Peers, checks: str) -> bool:
    """Runs a case and prints its row; returns whether it is right."""
    set_checks(re.sub(r"\ball\b", ",".join(c for c in CHECKS if c != case.without), checks))
    began = time.perf_counter()
    run = Run(case, device, peers)
    try:
        want = run.reduce() if case.kind == "reduce" else run.attend()
    except Fault as fault:
        text = re.sub(r"kernel \w+, (?=group)", "", str(fault))  # names of a thousand characters
        print(f"{case.name:35}{device:5}  fault: {text}", flush=True)
        return False
    error, share, lse = run.compare(want)
    right = share <= 1 and (lse is None or lse <= LSE_TOLERANCE)
    shown_lse = "-" if lse is None else f"{lse:.1e}"
    numbers = f"{error:10.1e}{share:9.2f}{shown_lse:>10}{run.instructions:13}"
    print(f"{case.name:35}{device:5}{numbers}  {'ok   ' if right else 'WRONG'}  {note_of(run)}".rstrip(), flush=True)
    print(f"{case.name} on {device}: {time.perf_counter() - began:.1f} s", file=sys.stderr)
    return right


def main() -> int:
    """Runs the command line; returns 1 if a row is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    folder = Path(tempfile.gettempdir(), "xesim_decode")
    parser.add_argument("--folder", type=Path, default=folder, help="keeps the download")
    parser.add_argument("--device", choices=("pvc", "bmg"), action="append", help="default: both")
    parser.add_argument("--check", default="all", metavar="TEXT", help="as in XEFLASH_SIM_CHECK; default: all")
    parser.add_argument("--only", default="", metavar="NAME", help="cases whose name contains this")
    parser.add_argument("--list", action="store_true", help="the cases' names")
    arguments = parser.parse_args()
    cases = [c for c in CASES if arguments.only in c.name]
    if arguments.list or not cases:
        print("\n".join(c.name for c in CASES))
        return int(not cases)
    print(f"{PEERS} in {arguments.folder}", file=sys.stderr)
    peers = Peers(arguments.folder)
    print(f"{'kernel':35}{'gpu':5}{'max error':>10}{'of bound':>9}{'LSE error':>10}{'instructions':>13}")
    devices = arguments.device or ["pvc", "bmg"]
    right = [run_case(case, device, peers, arguments.check) for case in cases for device in devices]
    return int(not all(right))


if __name__ == "__main__":
    sys.exit(main())
