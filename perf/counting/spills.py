"""Kernels that need more registers than a thread has, found by compiling a sample of all kernels that calls ask for.

One row for each kernel that spills, or that keeps an array in private memory: its bytes, and its description, as in
--only "head_dim=64 dtype=bfloat16 algorithm=flash_decode". Nothing runs: 40 kernels of each architecture take half an
hour. Lines of xeflash/tune/spills.csv mend them. The program ends with 1 if there are any.

--candidates measures those lines instead, of these devices: the tile that each strikes out, on its example, or, if it
names none, on the first of a few kernels of its kind that spills. --output writes them all, but for those that do not.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from xeflash import _core
from xeflash.bench.cases import parse_size
from xeflash.call.schema import BHSD, BSHD
from xeflash.call.score_mod import ScoreMod
from xeflash.cli.arguments import converter
from xeflash.jit.calls import kernels_of as kernels_of_call
from xeflash.runtime.interop import Placeholder
from xeflash.tune import pick, spills, xe
from xeflash.tune.desc import AnyDesc, Desc
from xeflash.tuner.counts import kernels_of

from counting.options import add_devices
from counting.tables import Row, Table

DIMS = ((16, 16), (40, 40), (64, 64), (80, 80), (96, 96), (112, 112), (128, 128), (192, 128), (192, 192), (256, 256))
DIMS += ((512, 512), (576, 512))
SNIPPET = "s + moves(h, q_idx - k_idx + 100) * factor"
# Queries, and heads of them to one of K and V.
ONE = tuple((1, group) for group in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 16))
SEVERAL = ((16, 1), (32, 1), (64, 1), (128, 1), (8, 2), (8, 4), (8, 8), (8, 16))
# Algorithms that go through all scores again, and lengths that have tiles of their own.
BACKWARD = ("flash_bwd_dq", "flash_bwd_dkv", "flash_bwd_bias", "attention_probs")
LENGTHS = (32, 64, 128)
CONDITION = "(abs(q_idx / 32 - k_idx / 32) <= 3) & (abs(q_idx % 32 - k_idx % 32) <= 3)"
KEYS = 1024
FEW, MANY = 1 << 16, 1  # compute units for which the tiles of a call are few, and many

# What an example has beside its sizes, by the words of spills.csv. A line without one gets the first of TOGETHER that
# its algorithm can have, that is of its kind, and that spills.
MORE: dict[str, dict[str, Any]] = {
    "": {},
    "packed": {"packed_heads": True},
    "documents": {"mask": "Documents"},
    "condition": {"mask": "Listed", "mask_mod": ScoreMod(CONDITION, ())},
    "beam": {"cache": "beam"},
    "dropout": {"dropout": True},
    "adds": {"adds_up": True},
    "turns": {"split_keys": True},
    "alibi": {"hooks": ("Alibi",)},
    "scores": {
        "hooks": ("SoftCap", "Alibi"),
        "bias": "float32",
        "score_mod": ScoreMod(SNIPPET, (("moves", "float16", 2), ("factor", "float", 0))),
    },
    "fp8": {"cache": "paged", "page_unit": 64, "cache_dtype": "float8_e4m3fn", "cache_scales": True},
}
MORE["nibbles"] = MORE["fp8"] | {"nibbles": True}
TOGETHER = (*MORE, "turns+alibi", "alibi+documents", "packed+dropout+scores+documents", "packed+fp8", "scores+fp8")
TOGETHER += ("packed+scores+fp8", "packed+nibbles", "packed+scores+nibbles")
TRIES = 12  # kernels that are compiled for a line without an example
_OF_CACHES = {"cache", "cache_dtype", "packed_heads", "split_keys"}
CANNOT_HAVE = {"flash_fwd": set[str](), "flash_decode": {"dropout", "packed_heads", "adds_up"}}
CANNOT_HAVE |= dict.fromkeys(xe.BACKWARD, _OF_CACHES)
HEADS = ((64, 64), (56, 56), (112, 112), (128, 128), (256, 256), (192, 128), (256, 192), (256, 64), (64, 256))
HEADS += ((192, 64), (512, 512), (576, 512), (576, 576), (264, 264), (96, 96), (192, 192), (64, 32))


def draw(arch: str, choose: Callable[[Any], Any]) -> AnyDesc | None:
    """Draws the description of a call, or of a part of its gradients; returns None if there is no such call."""
    dtype, (dim, dim_v) = choose(("bfloat16", "float16", "float32")), choose(DIMS)
    algorithm = choose((None, None, *BACKWARD))
    queries, group = (choose(LENGTHS), 1) if algorithm else choose(choose((ONE, SEVERAL)))
    cache = "" if algorithm else choose(("", "", "plain", "paged", "beam"))
    keys = choose(LENGTHS) if algorithm else KEYS
    gap = choose((0, 0, 1, 2))  # elements by which rows are too long for the widest access
    layout = BSHD if cache else BHSD

    def array(rows: int, heads: int, dim: int, dtype: str = dtype, batch: int = 1) -> Placeholder:
        return Placeholder((batch, rows, heads, dim) if cache else (batch, heads, rows, dim), dtype, gap)

    call: dict[str, Any] = {"function": "spills", "layout": layout, "q": array(queries, group, dim)}
    call["softcap"] = choose((0.0, 0.0, 1.0))
    call["alibi_slopes"] = Placeholder((group,), "float32") if choose((False, False, True)) else None
    call["score_mod"] = choose((None, None, (SNIPPET, {"moves": Placeholder((group, 2000), "float16"), "factor": 1.0})))
    call["softmax_scale"] = choose((1.0, 1.0, -1.0))
    units = choose((MANY, MANY, FEW))
    if cache:
        cache_dtype = choose((dtype, "float8_e4m3fn", "float8_e5m2", "int8"))
        page = choose((16, 32, 64))
        count = KEYS // page if cache == "paged" else 1
        rows = page if cache == "paged" else KEYS
        call |= {f"{name}_cache": array(rows, 1, d, cache_dtype, count) for name, d in (("k", dim), ("v", dim_v))}
        call |= {"block_table": Placeholder((1, count), "int32")} if cache == "paged" else {}
        call |= {"beam_index": Placeholder((1, KEYS), "int32")} if cache == "beam" else {}
        if cache_dtype != dtype:
            scale = choose((1.0, Placeholder((count, rows, 1), "float32")))
            call |= {"k_scale": scale, "v_scale": scale}
        if queries == 1 and choose((False, True)):
            call["unified_max"] = 1.0
        if queries > 1 and not call["alibi_slopes"] and choose((False, True)):
            call["tree_mask"] = Placeholder((1, queries, -(-queries // 32)), "int32")
        return asked(arch, units, _core.forward, "", call)
    call |= {"k": array(keys, 1, dim), "v": array(keys, 1, dim_v), "dropout_p": choose((0.0, 0.0, 0.5))}
    if bias := choose((None, None, "bool", dtype, "float32")):
        call["attn_mask"] = Placeholder((1, 1, choose((1, queries)), keys), bias)
    joins = choose((False, False, True))  # the results of other keys, or queries, in memory
    if not algorithm:
        if joins:
            call |= {"out": array(queries, group, dim_v, "float32"), "bottom_right": False}
            call["other_lse"] = Placeholder((1, group, queries), "float32")
        return asked(arch, units, _core.forward, "", call)
    call["lse"] = Placeholder((1, 1, queries), "float32")
    if algorithm == "attention_probs":
        return asked(arch, units, _core.probabilities, algorithm, call)
    call |= {name: array(queries, 1, dim_v) for name in ("out", "dout")}
    if joins and algorithm in BACKWARD[:2]:
        call |= {f"d{name}": array(rows, 1, d, "float32") for name, rows, d in (("q", queries, dim), ("k", keys, dim))}
        call |= {"dv": array(keys, 1, dim_v, "float32"), "bottom_right": False}
    call["wanted"] = ("q", "k", "v", *(name for name in ("attn_mask", "alibi_slopes") if call.get(name)))
    return asked(arch, units, _core.backward, algorithm, call)


def asked(arch: str, units: int, run: Callable[..., Any], algorithm: str, call: dict[str, Any]) -> AnyDesc | None:
    """Returns the kernel of an algorithm, or the first one, that a call asks for."""
    try:
        found = kernels_of_call(lambda: run(**call), arch, units)
    except NotImplementedError:
        return None
    return next((desc for desc in found if desc.algorithm == algorithm or not algorithm), None)


def drawn(arch: str, count: int, seed: int, only: dict[str, str]) -> Iterator[Desc]:
    """Yields different descriptions that have these values."""
    choose, found = random.Random(seed).choice, set[AnyDesc]()
    for _ in range(100000 * count):
        desc = draw(arch, choose)
        if desc and desc not in found and all(str(getattr(desc, name)) == value for name, value in only.items()):
            found.add(desc)
            yield desc
        if len(found) == count:
            return


def said(desc: Desc) -> str:
    """Returns the fields of a description that differ from the defaults."""
    values = {f.name: getattr(desc, f.name) for f in fields(desc) if getattr(desc, f.name) != f.default}
    return " ".join(f"{name}={'...' if name == 'score_mod' else value}" for name, value in values.items())


def trouble_with(desc: Desc) -> str:
    """Returns the bytes that a thread's kernels spill, by their kind, or why the kernel does not compile."""
    try:
        found = ((name, kernel[name]) for kernel in kernels_of(desc) for name in ("scratch", "spill", "private"))
        return ", ".join(f"{name} {size}" for name, size in found if size)
    except RuntimeError as error:
        errors = [line.strip() for line in str(error).splitlines() if "error" in line]
        return f"does not compile: {errors[:1]}"


def example_of(line: spills.Line, text: str) -> Desc:
    """Returns the kernel that an example says: architecture, rows, head dims of K and of V, and what else it has."""
    arch, rows, dim, dim_v, *words = text.split()
    more = {name: value for word in words for name, value in MORE[word].items()}
    algorithm, dtype = line.algorithm.split("|")[0], line.dtype.split("|")[0] or "bfloat16"
    access = line.access.split("|")[0] or ("dwords" if arch == "dg2" else "block2d")
    return Desc(algorithm, arch, dtype, int(dim), int(dim_v), int(rows), access=access, **more)


def archs_of(line: spills.Line) -> Sequence[str]:
    """Returns the architectures of a line."""
    return line.arch.split("|") if line.arch else xe.ARCHITECTURES


def examples(line: spills.Line) -> Iterator[str]:
    """Yields examples of a line's kind: its own, or some."""
    if line.example:
        yield line.example
        return
    rows = (16, 8, 1) if line.algorithm == "flash_decode" else (128, 32)
    cannot = CANNOT_HAVE[line.algorithm.split("|")[0]]
    for words, (dim, dim_v), arch, count in itertools.product(TOGETHER, HEADS, archs_of(line), rows):
        text = f"{arch} {count} {dim} {dim_v} {words.replace('+', ' ')}".strip()
        has = {name for word in words.split("+") for name in MORE[word]}
        if not has & cannot and line.is_of(example_of(line, text)):
            yield text


def spilled_by(desc: Desc, blocks: tuple[int, int]) -> int:
    """Returns the bytes that a kernel of these tiles spills; 0 if it does not compile."""
    try:
        return max(kernel["scratch"] for kernel in kernels_of(desc, pick(desc, blocks)))
    except RuntimeError:
        return 0


def measured(line: spills.Line) -> spills.Line:
    """Returns a line with its own example, or the first that spills, and the bytes; 0 of none."""
    for text in itertools.islice(examples(line), TRIES):
        if found := spilled_by(example_of(line, text), line.tile):
            return line._replace(example=text, spilled=str(found))
    return line._replace(spilled="0")


def remeasured(options: argparse.Namespace) -> Iterator[Row]:
    """Yields the lines of these devices, measured; writes them, and those of other devices, if they are to be kept."""
    kept = []
    for line in spills.lines():
        if set(archs_of(line)) & set(options.device):
            line = measured(line)
            yield line._asdict()
        if line.spilled == "0":
            options.wrong += 1
        else:
            kept.append(line)
    if options.output:
        with options.output.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerows([spills.Line._fields, *kept])


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this family."""
    add_devices(parser, xe.ARCHITECTURES, xe.ARCHITECTURES)
    parser.add_argument("--count", type=converter(parse_size), default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=converter(only), default={}, help="field=value of their descriptions")
    parser.add_argument("--candidates", action="store_true", help="measure the lines of spills.csv")
    parser.add_argument("--output", type=Path, help="a file for the lines that spill")


def only(text: str) -> dict[str, str]:
    """Returns the values that fields must have."""
    found = dict(word.partition("=")[::2] for word in text.split())
    if unknown := set(found) - {f.name for f in fields(Desc)}:
        raise ValueError(f"descriptions have no {', '.join(sorted(unknown))}")
    return found


def report(options: argparse.Namespace) -> Iterator[Table | str]:
    """Yields a table of kernels that spill or fail, and their number."""
    if options.candidates:
        yield Table("tiles that spill", dict.fromkeys(spills.Line._fields, ""), remeasured(options))
        yield f"{options.wrong} of them do not"
        return
    compiled = 0

    def rows() -> Iterator[Row]:
        nonlocal compiled
        for arch in options.device:
            for desc in drawn(arch, options.count, options.seed, options.only):
                compiled += 1
                if trouble := trouble_with(desc):
                    options.wrong += 1
                    yield {"device": arch, "bytes": trouble, "description": said(desc)}

    yield Table("kernels that spill", {"device": "", "bytes": "", "description": ""}, rows())
    yield f"{compiled} kernels, {options.wrong} of them named above"
