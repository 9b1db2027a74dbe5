"""Kernels that need more registers than a thread has, found by compiling a sample of all kernels that calls ask for.

One row for each kernel that spills, or that keeps an array in private memory: its bytes, and its description, as in
--only "head_dim=64 dtype=bfloat16 algorithm=flash_decode". Nothing runs: 40 kernels of each architecture take half an
hour. Rows of xeflash/tune/xe.py mend them. The program ends with 1 if there are any.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from xeflash import _core
from xeflash.bench.cases import parse_size
from xeflash.call.schema import BHSD, BSHD
from xeflash.cli.arguments import converter
from xeflash.jit.calls import kernels_of as kernels_of_call
from xeflash.runtime.interop import Placeholder
from xeflash.tune import xe
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
KEYS = 1024
FEW, MANY = 1 << 16, 1  # compute units for which the tiles of a call are few, and many


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


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of this family."""
    add_devices(parser, xe.ARCHITECTURES, xe.ARCHITECTURES)
    parser.add_argument("--count", type=converter(parse_size), default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=converter(only), default={}, help="field=value of their descriptions")


def only(text: str) -> dict[str, str]:
    """Returns the values that fields must have."""
    found = dict(word.partition("=")[::2] for word in text.split())
    if unknown := set(found) - {f.name for f in fields(Desc)}:
        raise ValueError(f"descriptions have no {', '.join(sorted(unknown))}")
    return found


def report(options: argparse.Namespace) -> Iterator[Table | str]:
    """Yields a table of kernels that spill or fail, and their number."""
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
