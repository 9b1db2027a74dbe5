"""Tables of products of few rows: the dataflow, and how much of W a thread takes.

`python perf/sweep.py --device bmg --algorithm linear` compares what they choose with other sizes.
"""

from __future__ import annotations

import math
from dataclasses import replace

from xeflash.tune.desc import Config, ProductDesc, SoftmaxDesc
from xeflash.tune.schedule import ProductSchedule

# arch, weights, rows <=, outputs <= 2^n: outputs of a thread, rows of a tile (0: as many as there are), inputs of a
# step (0: all), threads of a group, which take turns at the inputs
Row = tuple[str, str, int, int, int, int, int, int]

# rows <=, rows of a tile (0: as many as there are), outputs of a thread where weights have 16 bits, and where they do
# not. DG2's registers are half as wide.
_XE2 = ((16, 0, 32, 32), (32, 0, 32, 32), (64, 0, 32, 16))
_GPU_SIZES = {"pvc": _XE2, "bmg": _XE2, "dg2": ((8, 0, 32, 32), (64, 16, 32, 16))}

LINEAR: list[Row] = [
    # Up to 8 rows: lane = input, of which so many rows of x stay in L1. Then lane = row, of which 16 are a vector.
    ("cpu", "*", 8, 10, 16, 0, 2048, 1),
    ("cpu", "*", 8, 99, 48, 0, 2048, 1),
    # 16 rows are twice 8, which find W in L2, but in fp32, where arithmetic takes the time.
    ("cpu", "float32", 16, 99, 48, 16, 128, 1),
    ("cpu", "*", 16, 10, 16, 8, 2048, 1),
    ("cpu", "*", 16, 99, 48, 8, 2048, 1),
    ("cpu", "*", 32, 99, 48, 32, 128, 1),
    ("cpu", "*", 64, 10, 48, 64, 128, 1),
    ("cpu", "*", 64, 99, 96, 64, 128, 1),
    # GPUs: lane = row. Sums, those of a group of inputs that shares a scale, and weights have to fit in registers. The
    # fewer outputs, the more threads of a group take turns at the inputs, so that the device has work.
    *(
        (arch, weight, rows, width, outputs, tile, inputs, threads)
        for arch, sizes in _GPU_SIZES.items()
        for weight, inputs in (("float32", 32), ("float16", 64), ("bfloat16", 64), ("uint8", 128), ("*", 64))
        for rows, tile, half_outputs, other_outputs in sizes
        for outputs in (half_outputs if weight in ("float16", "bfloat16") else other_outputs,)
        for width, threads in ((10, 16), (12, 8), (14, 4), (99, 2))
        if outputs >= threads or width > 10
    ),
]

TABLES = {"linear": LINEAR}


def row_of(desc: ProductDesc) -> Row:
    """Returns the first row of the table that fits."""
    family = "cpu" if desc.arch.startswith("cpu-") else desc.arch
    for row in TABLES[desc.algorithm]:
        arch, weight, rows, width, *_ = row
        fits = arch in ("*", family) and weight in ("*", desc.weight or desc.dtype)
        if fits and desc.rows <= rows and desc.width <= width:
            return row
    raise NotImplementedError(f"xeflash: no {desc.algorithm} kernel for {desc}")


def pick_product(desc: ProductDesc) -> Config:
    """Returns the sizes that the tables have for `desc`."""
    *_, outputs, rows, inputs, threads = row_of(desc)
    if not desc.arch.startswith("cpu-"):
        lanes = 8 if desc.arch == "dg2" else 16
        rows = -(-(rows or desc.rows) // lanes) * lanes
        if desc.access == "elements":  # their addresses take registers
            outputs, threads = min(outputs, lanes), min(threads, lanes)
    return Config(rows or desc.rows, inputs, outputs, threads=threads, turns=threads)


# arch, dtype, access, columns <= 2^n, rows <=: rows of a thread, columns of a tile, most inputs of a step, products,
# threads of a group, which are neighbours
SoftmaxRow = tuple[str, str, str, int, int, int, int, int, int, int]

# CPUs keep the scores of a thread's rows, in memory: 32 rows of 4096 columns are half of an L2 of 1 MB. Made twice,
# they would cost 2 K operations each, and only below K = 70 is that less than to write and read them in memory.
# GPUs make scores twice: memory would have to take them and give them back, which costs as much as 130 (fp32) to 550
# (16 bits) inputs do; what a thread can hold, one tile, is kept.
MATMUL_SOFTMAX: list[SoftmaxRow] = [
    ("cpu-amx-bf16", "bfloat16", "*", 99, 99, 32, 96, 256, 1, 1),
    ("cpu", "*", "*", 99, 16, 16, 96, 128, 1, 1),
    ("cpu", "bfloat16", "*", 12, 99, 32, 96, 256, 1, 1),
    ("cpu", "*", "*", 12, 99, 32, 96, 128, 1, 1),
    ("cpu", "*", "*", 99, 99, 16, 96, 128, 1, 1),
    ("dg2", "float32", "*", 4, 99, 8, 16, 32, 1, 8),
    ("dg2", "float32", "*", 99, 99, 8, 16, 16, 2, 8),  # half of the registers of others
    ("dg2", "*", "elements", 99, 99, 8, 16, 32, 2, 8),  # the halves of dwords need registers, too
    ("dg2", "*", "*", 5, 99, 8, 32, 64, 1, 8),
    ("dg2", "*", "*", 99, 99, 8, 16, 64, 2, 8),
    ("*", "float32", "*", 5, 99, 8, 32, 64, 1, 8),
    ("*", "float32", "*", 99, 99, 8, 32, 64, 2, 8),
    ("*", "*", "*", 6, 99, 8, 64, 128, 1, 8),
    ("*", "*", "*", 99, 8, 8, 64, 128, 2, 8),
    ("*", "*", "*", 99, 99, 16, 32, 128, 2, 8),
]


def pick_softmax(desc: SoftmaxDesc) -> Config:
    """Returns the sizes that the table has for `desc`."""
    family = "cpu" if desc.arch.startswith("cpu-") else desc.arch
    for arch, dtype, access, columns, most_rows, *sizes in MATMUL_SOFTMAX:
        if (
            arch in ("*", family, desc.arch)
            and dtype in ("*", desc.dtype)
            and access in ("*", desc.access)
            and desc.columns <= columns
            and desc.rows <= most_rows
        ):
            rows, width, inputs, products, threads = sizes
            step = min(inputs, desc.inputs)
            while desc.inputs % step:
                step //= 2
            return Config(rows, step, width, threads=threads, products=products)
    raise NotImplementedError(f"xeflash: no {desc.algorithm} kernel for {desc}")


# arch, algorithm ("*": what makes logits), dtype, rows <=: rows of a thread, columns of a tile, most inputs of a step,
# threads of a group, which are neighbours
HeadRow = tuple[str, str, str, int, int, int, int, int]

# A tile of x, one of W and sums of both have to fit in registers; CPUs keep a tile of x in L1.
HEADS: list[HeadRow] = [
    ("cpu", "matmul_add", "*", 99, 96, 128, 128, 1),
    ("cpu", "*", "*", 16, 16, 96, 256, 1),
    ("cpu", "*", "*", 32, 32, 96, 256, 1),
    ("cpu", "*", "*", 99, 64, 96, 256, 1),
    ("dg2", "matmul_add", "float32", 99, 8, 16, 16, 8),
    ("dg2", "matmul_add", "*", 99, 8, 32, 32, 8),
    ("*", "matmul_add", "float32", 99, 8, 32, 32, 8),
    ("*", "matmul_add", "*", 99, 16, 64, 32, 8),
    *(
        (arch, "*", dtype, most, rows, columns, inputs, threads)
        for arch, dtype, rows, columns, inputs in (
            ("dg2", "float32", 8, 16, 16),
            ("dg2", "*", 8, 16, 32),
            ("*", "float32", 8, 32, 32),
            ("*", "*", 16, 32, 64),
        )
        for most, threads in ((16, 1), (99, 8))
    ),
]


def pick_head(desc: SoftmaxDesc) -> Config:
    """Returns the sizes that the table has for `desc`."""
    family = "cpu" if desc.arch.startswith("cpu-") else desc.arch
    if desc.algorithm == "sample_tokens":  # a group has a row: on GPUs all threads of an Xe-core
        return Config(1, 0, 64, threads=1 if family == "cpu" else 32, turns=1 if family == "cpu" else 32)
    for arch, algorithm, dtype, most_rows, rows, columns, inputs, threads in HEADS:
        if (
            arch in ("*", family)
            and algorithm in ("*", desc.algorithm)
            and dtype in ("*", desc.dtype)
            and desc.rows <= most_rows
        ):
            # CPUs fill the last step up; of few inputs that would be most of it.
            step = inputs if family == "cpu" and desc.inputs >= 128 else min(inputs, desc.inputs)
            return Config(rows, step, columns, threads=threads)
    raise NotImplementedError(f"xeflash: no {desc.algorithm} kernel for {desc}")


def _unit(*lists: list[int]) -> int:
    return math.lcm(*(size for sizes in lists for size in sizes))


# Tiles of slopes, and steps of products with them, end where rows and columns of slopes do; sums in fp32 have whole
# tiles of GPUs, as CPUs have such sums in the place of results.
_STEPS = [inputs for _, name, *_, inputs, _ in HEADS if name == "matmul_add"]
LOGITS_UNIT = _unit([columns for _, name, _, _, _, columns, _, _ in HEADS if name != "matmul_add"], _STEPS)
SUMS_UNIT = _unit([columns for arch, name, _, _, _, columns, _, _ in HEADS if name == "matmul_add" and arch != "cpu"])
BLOCK_ROWS = 64  # rows whose logits are in memory: at least as many, unless the call has fewer
SAMPLED_ROWS = 64  # rows whose logits are in memory at a time, to draw from
WEIGHT_OUTPUTS = 1024  # outputs whose weights are unpacked at a time, for a gradient

_OF_CPUS = ProductSchedule(
    logits_unit=LOGITS_UNIT,
    sums_unit=SUMS_UNIT,
    slope_unit=_unit(_STEPS),
    part_columns=1024,
    parts=32,
    core_columns=512,
    slope_rows=2048,
    slope_elements=1 << 20,
    slope_columns=768,
    slope_gap=16,
    few_rows=8,
    cores_of_tables=2,
)
_OF_GPUS = replace(
    _OF_CPUS,
    part_columns=256,
    parts=128,
    core_columns=0,
    slope_rows=4096,
    slope_elements=4 << 20,
    slope_gap=0,
    few_rows=0,
    cores_of_tables=0,
)


def product_schedule(arch: str, *_: str) -> ProductSchedule:
    """Returns the numbers by which products are shared out over a device."""
    return _OF_CPUS if arch.startswith("cpu-") else _OF_GPUS
