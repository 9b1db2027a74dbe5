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
from dataclasses import fields
from typing import Any

from xeflash import _core
from xeflash.call.schema import BHSD, BSHD
from xeflash.jit.calls import kernels_of
from xeflash.jit.kernel import render
from xeflash.jit.offline import compile_offline
from xeflash.runtime.interop import Placeholder
from xeflash.sim.binary import compile_spirv, inspect
from xeflash.tune import xe
from xeflash.tune.desc import AnyDesc, Desc

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
    """The description of a call, or of a part of its gradients; None: there is no such call."""
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
    if not algorithm:
        return asked(arch, units, _core.forward, "", call)
    call["lse"] = Placeholder((1, 1, queries), "float32")
    if algorithm == "attention_probs":
        return asked(arch, units, _core.probabilities, algorithm, call)
    call |= {name: array(queries, 1, dim_v) for name in ("out", "dout")}
    call["wanted"] = ("q", "k", "v", *(name for name in ("attn_mask", "alibi_slopes") if call.get(name)))
    return asked(arch, units, _core.backward, algorithm, call)


def asked(arch: str, units: int, run: Callable[..., Any], algorithm: str, call: dict[str, Any]) -> AnyDesc | None:
    """The kernel of an algorithm, or the first one, that a call asks for."""
    try:
        found = kernels_of(lambda: run(**call), arch, units)
    except NotImplementedError:
        return None
    return next((desc for desc in found if desc.algorithm == algorithm or not algorithm), None)


def drawn(arch: str, count: int, seed: int, only: dict[str, str]) -> Iterator[Desc]:
    """Different ones that have these values."""
    choose, found = random.Random(seed).choice, set[AnyDesc]()
    for _ in range(100000 * count):
        desc = draw(arch, choose)
        if desc and desc not in found and all(str(getattr(desc, name)) == value for name, value in only.items()):
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
