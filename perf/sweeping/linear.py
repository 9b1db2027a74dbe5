"""Sweeps of linear: a choice is outputs and inputs of a step (0: all), and threads that take turns at the inputs."""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from counting.tables import Row
from xeflash.tune import products
from xeflash.tune.desc import DTYPE_NAMES, Config, ProductDesc
from xeflash.tune.products import pick_product
from xeflash.tuner.counts import kernel_of

from sweeping import is_cpu

IN_FEATURES = 4096  # inputs of timed calls
SIZES = ("outputs", "inputs of a step", "turns")
FIGURES = {"instructions / byte": ".3f", "threads": "", "of": "", "scratch": ""}
WEIGHTS = {None: 0, "int8": 0, "uint8": 128}  # and the group of inputs that shares a scale
BYTES_OF = {"float32": 4.0, "float16": 2.0, "bfloat16": 2.0, "int8": 1.0, "uint8": 0.5}
HELD = {"bmg": 20 * 8 * 4, "pvc": 64 * 8 * 4, "dg2": 32 * 16 * 4}  # threads, all registers: B580, a stack, A770


def problems(arch: str, algorithm: str, dtypes: tuple[str, ...], dims: object) -> Iterator[ProductDesc]:  # noqa: ARG001
    """Yields problems, small ones first."""
    access = "" if is_cpu(arch) else "dwords" if arch == "dg2" else "block2d"
    widths = (10, 12, 14) if is_cpu(arch) else (10, 12, 14, 15)
    for width, rows, dtype, weight in itertools.product(widths, (1, 4, 8, 16, 32, 64), dtypes, WEIGHTS):
        scale = DTYPE_NAMES[dtype] if weight else None
        weight_fields = {"weight": weight, "scale": scale, "group": WEIGHTS[weight]}
        yield ProductDesc(algorithm, arch, DTYPE_NAMES[dtype], rows, width, **weight_fields, access=access)


def tune_of(arch: str) -> ModuleType:  # noqa: ARG001
    """Returns the module that has the tables."""
    return products


def chosen_of(desc: ProductDesc) -> tuple[int, int, int]:
    """Returns the choice of the table."""
    config = pick_product(desc)
    return config.block_v, config.block_k, config.threads


def choices(desc: ProductDesc, options: argparse.Namespace) -> list[tuple[int, int, int]]:  # noqa: ARG001
    """Returns the table's choice, and those around it."""
    _, inputs, threads = chosen = chosen_of(desc)
    if is_cpu(desc.arch):
        outputs = (16, 48, 96) if desc.rows <= 8 else (48, 96, 192)
        steps = (1024, 2048, 0) if desc.rows <= 8 else (64, 128, 256)
        found = [(n, k, threads) for n in outputs for k in steps]
    else:
        found = [(n, inputs, t) for n in (8, 16, 32) for t in (1, 2, 4, 8, 16) if n >= t]
    return found if chosen in found else [chosen, *found]


def count(desc: ProductDesc, sizes: tuple[int, int, int]) -> Row:
    """Counts the main loop, for all tiles that read the same weights."""
    outputs, inputs, turns = sizes
    config = Config(pick_product(desc).block_q, inputs, outputs, threads=turns, turns=turns)
    kernel = kernel_of(desc, config)
    tiles = -(-desc.rows // config.block_q)
    size = outputs * inputs * BYTES_OF[desc.weight or desc.dtype]
    return {
        "instructions / byte": tiles * kernel["loop"]["instructions"] / size,
        "threads": -(-(1 << desc.width) // outputs) * turns * tiles, "of": HELD[desc.arch],
        "scratch": kernel["scratch"],
    }  # fmt: skip


def use(desc: ProductDesc, sizes: tuple[int, int, int]) -> None:
    """Gives this process one row in its table."""
    outputs, inputs, _ = sizes
    products.TABLES["linear"] = [("cpu", "*", 64, 99, outputs, pick_product(desc).block_q, inputs, 1)]


def sample(desc: ProductDesc) -> float:
    """Times a call in milliseconds, on weights that are in no cache."""
    import torch
    import xeflash

    dtype = getattr(torch, desc.dtype)
    outputs, columns = 1 << desc.width, IN_FEATURES // 2 if desc.weight == "uint8" else IN_FEATURES
    weight = torch.ones(outputs, columns, dtype=getattr(torch, desc.weight or desc.dtype))
    arguments: dict[str, Any] = {"group": desc.group or None} if desc.weight else {}
    if desc.weight:
        arguments["scales"] = torch.ones(IN_FEATURES // desc.group if desc.group else 1, outputs, dtype=dtype)
    copies = [weight.clone() for _ in range(max(2, (256 << 20) // weight.nbytes))]
    x, times = torch.ones(desc.rows, IN_FEATURES, dtype=dtype), []
    xeflash.linear(x, weight, **arguments)
    for some in copies:
        start = time.perf_counter()
        xeflash.linear(x, some, **arguments)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)
