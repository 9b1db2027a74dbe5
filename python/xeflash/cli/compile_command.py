"""`xeflash compile`: build kernels for the shapes of models ahead of the first call."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any

from xeflash.bench.cases import DTYPES, parse_choices, parse_size
from xeflash.cli.arguments import converter
from xeflash.tune import xe
from xeflash.tune.models import CACHES, SHAPES

DEVICES = ("cpu", "xpu", *xe.DEVICES)


def _models(text: str) -> tuple[str, ...]:
    """Returns the names in a comma list; "all" stands for every model."""
    return tuple(SHAPES) if text == "all" else parse_choices(text, tuple(SHAPES))


def add_parser(commands: Any) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "compile",
        help="compile kernels into the cache before they are needed",
        description="Compile the attention kernels that models need, of prompts and of decoding, and keep them in the "
        "cache folder. For cpu and xpu, the GPU of this machine, that is native code, and a run compiles nothing. For "
        "a named GPU, which need not be here, it is device code: a run has its driver translate each kernel once, and "
        "compiles nothing from source.",
    )
    models = parser.add_mutually_exclusive_group(required=True)
    models.add_argument(
        "--model-shapes",
        metavar="NAMES",
        type=converter(_models),
        help=f"comma list or all; known: {', '.join(SHAPES)}",
    )
    models.add_argument("--config", metavar="PATH", help="a model's folder, or its config.json")
    parser.add_argument("--device", choices=DEVICES, default="cpu", help="default: cpu; xpu: the GPU of this machine")
    parser.add_argument(
        "--dtype",
        metavar="LIST",
        type=converter(lambda text: parse_choices(text, DTYPES)),
        help="comma list of fp32, bf16, fp16; default: that of --config, or bf16",
    )
    parser.add_argument(
        "--caches",
        metavar="LIST",
        type=converter(lambda text: parse_choices(text, CACHES)),
        default=("dense", "paged"),
        help="comma list of dense, paged and fp8, which is pages in 8 bits; default: dense,paged",
    )
    size = converter(parse_size)
    parser.add_argument("--page-size", metavar="N", type=size, default=16, help="keys of a page; default: 16")
    parser.add_argument(
        "--tensor-parallel-size", metavar="N", type=size, default=1, help="ranks that share out the heads; default: 1"
    )
    parser.add_argument("--training", action="store_true", help="the kernels of gradients, too")
    parser.add_argument("--jobs", metavar="N", type=size, default=1, help="compilers at a time; default: 1")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Hands the arguments to the package's compiler."""
    try:
        compile_command: Any = importlib.import_module("xeflash.jit").compile_command
    except (ImportError, AttributeError) as error:
        print(f"xeflash compile: {error}; see: xeflash doctor", file=sys.stderr)
        return 2
    return int(compile_command(arguments) or 0)
