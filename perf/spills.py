"""Kernels that want more registers than a thread has, found by compiling a sample of all that calls can ask for.

    python perf/spills.py                                       # 40 kernels of each architecture; half an hour
    python perf/spills.py --device bmg --count 500 --seed 7
    python perf/spills.py --device dg2 --only "head_dim=64 dtype=bfloat16 algorithm=flash_decode"

One line for each kernel that spills, or that keeps an array in private memory: its bytes, and its description. Nothing
runs. Rows of xeflash/tune/xe.py mend them. Needs ocloc and the simulator, see xeflash.sim.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

from xeflash.call.score_mod import ScoreMod
from xeflash.jit.calls import describe, describe_backward
from xeflash.jit.kernel import render
from xeflash.jit.offline import compile_offline
from xeflash.sim.binary import compile_spirv, inspect
from xeflash.tune import xe
from xeflash.tune.desc import Desc

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
    return replace(desc, rows=1) if of_one_row else desc  # as backward.cpp has it


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


def memory_of(desc: Desc) -> dict[str, int]:
    """Bytes a thread, of the kernels that have any, by their kind."""
    binary = compile_spirv(desc.arch, compile_offline(render(desc)).binary, "-vc-codegen -doubleGRF")
    found = ((name, kernel[name]) for kernel in inspect(desc.arch, binary) for name in ("scratch", "spill", "private"))
    return {name: size for name, size in found if size}


def main() -> int:
    """Command line; 1 if a kernel has any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=xe.ARCHITECTURES, action="append", help="default: all")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help='field=value of their descriptions, e.g. "head_dim=64 cache=paged"')
    arguments = parser.parse_args()
    only = dict(word.split("=", 1) for word in arguments.only.split())
    if unknown := set(only) - {f.name for f in fields(Desc)}:
        parser.error(f"--only: descriptions have no {', '.join(sorted(unknown))}")
    compiled = spilling = 0
    for arch in arguments.device or xe.ARCHITECTURES:
        for desc in drawn(arch, arguments.count, arguments.seed, only):
            compiled += 1
            try:
                memory = memory_of(desc)
            except RuntimeError as error:
                errors = [line.strip() for line in str(error).splitlines() if "error" in line]
                print(f"does not compile: {said(desc)}: {errors[:1]}", flush=True)
                spilling += 1
                continue
            spilling += bool(memory)
            if memory:
                sizes = ", ".join(f"{name} {size}" for name, size in memory.items())
                print(f"{sizes}: {said(desc)}", flush=True)
    print(f"{compiled} kernels, {spilling} of them named above")
    return 1 if spilling else 0


if __name__ == "__main__":
    sys.exit(main())
