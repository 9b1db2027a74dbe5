"""Kernels that want more registers than a thread has, found by compiling a sample of all that calls can ask for.

One row for each kernel that spills, or that keeps an array in private memory: its bytes, and its description, as in
--only "head_dim=64 dtype=bfloat16 algorithm=flash_decode". Nothing runs: 40 kernels of each architecture take half an
hour. Rows of xeflash/tune/xe.py mend them. The program ends with 1 if there are any.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from xeflash.bench.cases import parse_size
from xeflash.call.score_mod import ScoreMod
from xeflash.cli.arguments import converter
from xeflash.jit.calls import describe, describe_backward
from xeflash.tune import xe
from xeflash.tune.desc import Desc

from counting.compiled import kernels_of
from counting.options import add_devices
from counting.tables import Row, Table

DIMS = ((16, 16), (40, 40), (64, 64), (80, 80), (96, 96), (112, 112), (128, 128), (192, 128), (192, 192), (256, 256))
DIMS += ((512, 512), (576, 512))
SNIPPET = ScoreMod("s + moves(h, q_idx - k_idx + 100) * factor", (("moves", "float16", 2), ("factor", "float", 0)))
# Queries, and heads of them to one of K and V.
ONE = tuple((1, group) for group in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 15, 16))
SEVERAL = ((16, 1), (32, 1), (64, 1), (128, 1), (8, 2), (8, 4), (8, 8), (8, 16))
# Algorithms that go through all scores again, and lengths that have tiles of their own.
BACKWARD = ("flash_bwd_dq", "flash_bwd_dkv", "flash_bwd_bias", "attention_probs")
LENGTHS = (32, 64, 128)


def draw(arch: str, choose: Callable[[Any], Any]) -> Desc:
    """The description of a call, or of a part of its gradients."""
    dtype = choose(("bfloat16", "float16", "float32"))
    common = {
        "hooks": tuple(name for name in ("SoftCap", "Alibi") if choose((False, False, True))),
        "score_mod": choose((None, None, SNIPPET)),
        "negative_scale": choose((False, False, True)),
        "access": choose(("block2d", "block2d", "dwords", "elements")),
    }
    dense = {"bias": choose((None, None, "bool", dtype, "float32")), "dropout": choose((False, False, True))}
    if algorithm := choose((None, None, *BACKWARD)):
        if algorithm == "flash_bwd_bias":
            return draw_bias_gradient(arch, choose, dtype, {**common, **dense})
        return describe_backward(
            algorithm, arch, dtype, *choose(DIMS), choose(LENGTHS), choose(LENGTHS), **common, **dense
        )
    queries, group = choose(choose((ONE, SEVERAL)))
    cache = choose(("", "", "plain", "paged", "beam"))
    features = dense
    if cache:
        cache_dtype = choose((None, "float8_e4m3fn", "float8_e5m2", "int8"))
        features = {
            "cache": "" if cache == "plain" else cache,
            "page": choose((16, 32, 64)) if cache == "paged" else 0,
            "cache_dtype": cache_dtype,
            "cache_scales": cache_dtype is not None and choose((False, True)),
            "unified_max": queries == 1 and choose((False, True)),
        }
    few_tiles = choose((False, False, True))
    return describe(arch, dtype, *choose(DIMS), queries, group, few_tiles=few_tiles, **common, **features)


def draw_bias_gradient(arch: str, choose: Callable[[Any], Any], dtype: str, features: dict[str, Any]) -> Desc:
    """Of a bias, or of ALiBi's slopes if there are any."""
    if "Alibi" in features["hooks"] and choose((False, True)):
        features["sums_slopes"] = True
    else:
        features |= {"bias": choose((dtype, "float32")), "bias_gradient": choose((dtype, "float32"))}
    desc = describe_backward("flash_bwd_bias", arch, dtype, *choose(DIMS), choose(LENGTHS), 1, **features)
    of_one_row = desc.bias_gradient == "float32" and choose((False, True))
    return replace(desc, rows=8) if of_one_row else desc  # as backward.cpp has it


def drawn(arch: str, count: int, seed: int, only: dict[str, str]) -> Iterator[Desc]:
    """Different ones that have these values."""
    choose, found = random.Random(seed).choice, set[Desc]()
    for _ in range(100000 * count):
        desc = draw(arch, choose)
        if desc not in found and all(str(getattr(desc, name)) == value for name, value in only.items()):
            found.add(desc)
            yield desc
        if len(found) == count:
            return


def said(desc: Desc) -> str:
    """What differs from the defaults."""
    values = {f.name: getattr(desc, f.name) for f in fields(desc) if getattr(desc, f.name) != f.default}
    return " ".join(f"{name}={'...' if name == 'score_mod' else value}" for name, value in values.items())


def trouble_with(desc: Desc) -> str:
    """Bytes a thread, of the kernels that have any, by their kind; or why it does not compile."""
    try:
        found = ((name, kernel[name]) for kernel in kernels_of(desc) for name in ("scratch", "spill", "private"))
        return ", ".join(f"{name} {size}" for name, size in found if size)
    except RuntimeError as error:
        errors = [line.strip() for line in str(error).splitlines() if "error" in line]
        return f"does not compile: {errors[:1]}"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Of this family."""
    add_devices(parser, xe.ARCHITECTURES, xe.ARCHITECTURES)
    parser.add_argument("--count", type=converter(parse_size), default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=converter(only), default={}, help="field=value of their descriptions")


def only(text: str) -> dict[str, str]:
    """The values that fields must have."""
    found = dict(word.partition("=")[::2] for word in text.split())
    if unknown := set(found) - {f.name for f in fields(Desc)}:
        raise ValueError(f"descriptions have no {', '.join(sorted(unknown))}")
    return found


def report(options: argparse.Namespace) -> Iterator[Table | str]:
    """A table of what is wrong, and how many that are."""
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
