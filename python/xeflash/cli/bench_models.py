"""The benchmarks of language models: `xeflash bench decode`, `generate` and `train`."""

from __future__ import annotations

import argparse
import functools
from typing import TYPE_CHECKING, Any

from xeflash.bench.cases import product
from xeflash.bench.linear.cases import WEIGHTS
from xeflash.bench.llm import cells as grid
from xeflash.bench.llm.cells import Cell, TrainCell
from xeflash.bench.llm.presets import PRESETS
from xeflash.cli.arguments import converter
from xeflash.cli.bench_shared import LISTS, SIZES, add_lists, add_measuring, add_output, add_size, guarded, report

if TYPE_CHECKING:
    from xeflash.bench.tables import Layout

_ROUNDS = 3


def add_parsers(commands: Any) -> None:
    """Adds the subcommands."""
    for name, text in (
        ("decode", "a model's time to the first token and per token, and attention's part in it"),
        ("generate", "the time of a model's whole generate()"),
    ):
        _add_decode(commands, name, text)
    _add_train(commands)


def _add_models(cases: Any, dtypes: tuple[str, ...]) -> None:
    """Adds the options that say which model, in which of these types, by default the first, on how many sequences."""
    add_lists(cases, model=(tuple(PRESETS), ("small",), "small is a model that two CPU cores can run"))
    add_size(cases, "layers", "layers of the model; default: all")
    add_lists(cases, dtype=(dtypes, dtypes[:1], ""), batch=(SIZES, (1,), ""))


def _add_decode(commands: Any, name: str, text: str) -> None:
    parser = commands.add_parser(
        name,
        help=text,
        description="Build models of Transformers with random weights and run generate() with several attentions "
        f"and caches, in turns; they are checked to agree first. {LISTS}",
    )
    cases = parser.add_argument_group("cases")
    _add_models(cases, ("bf16", "fp16", "fp32"))
    add_lists(
        cases,
        beams=(SIZES, (1,), "1 is greedy, 4 is a search"),
        context=(SIZES, grid.DEFAULT_CONTEXTS, "tokens of the prompt"),
        cache_dtype=(
            grid.CACHE_DTYPES,
            ("same",),
            "of the cache xe: same is the dtype, k8v4 is K in int8 and V in 4 bits",
        ),
        linear=(grid.LINEARS, ("torch",), "who computes linear layers"),
        weights=(WEIGHTS, ("same",), "of linear layers but the head, rounded on load; same is the dtype"),
        lm_head=(grid.HEADS, ("same",), "same is the dtype; fused is quantised as --weights says"),
    )
    add_size(cases, "new-tokens", "tokens that are generated", 32)
    cases.add_argument(
        "--compare",
        metavar="LIST",
        type=converter(grid.parse_implementations),
        default=grid.parse_implementations("xeflash,sdpa,eager"),
        help="attention/cache: xeflash/xe, .../dynamic, .../static with xeflash, sdpa, eager; "
        "default: xeflash/xe,sdpa/dynamic,eager/dynamic",
    )
    add_measuring(parser, _ROUNDS)
    add_output(parser)
    parser.set_defaults(run=functools.partial(guarded, measure=_decode), what=name)


def _decode(arguments: argparse.Namespace) -> int:
    from xeflash.bench.llm import decode, rows

    if arguments.new_tokens < 2:
        raise ValueError("bench: --new-tokens must be at least 2, as times are those between tokens, got 1")
    if "k8v4" in arguments.cache_dtype and "fp32" in arguments.dtype:
        raise ValueError("bench: --cache-dtype k8v4 needs --dtype of bf16 or fp16, got fp32")
    ways = grid.with_linears(grid.with_cache_dtypes(arguments.compare, arguments.cache_dtype), arguments.linear)
    if set(arguments.cache_dtype) != {"same"} and all(way.cache != "xe" for way in ways):
        raise ValueError(
            f"bench: --cache-dtype must be same without the cache xe, got {','.join(arguments.cache_dtype)}"
        )
    cells = product(
        Cell,
        model=arguments.model,
        layers=arguments.layers,
        dtype=arguments.dtype,
        weights=grid.with_heads(arguments.weights, arguments.lm_head),
        batch=arguments.batch,
        beams=arguments.beams,
        context=arguments.context,
        new_tokens=arguments.new_tokens,
    )
    layout = rows.DECODE if arguments.what == "decode" else rows.GENERATE
    return _measure(arguments, decode.Decoding, cells, layout, ways, peaks=not arguments.no_peak)


def _add_train(commands: Any) -> None:
    parser = commands.add_parser(
        "train",
        help="a model's training steps: tokens/s and peak memory, attention by attention",
        description="Build models of Transformers with random weights and make training steps (forward pass, loss, "
        "backward pass, AdamW) with several attentions, in turns; their losses and gradients are checked to agree "
        "first. Peak memory is the most that torch's allocator gives out during a step, above what it had given out "
        f"before. {LISTS}",
    )
    cases = parser.add_argument_group("cases")
    _add_models(cases, ("fp32", "bf16"))  # in fp16, what AdamW adds to a denominator is 0
    add_lists(cases, seq=(SIZES, (512, 2048), "tokens"), compare=(grid.ATTENTIONS, grid.ATTENTIONS, "attentions"))
    cases.add_argument("--checkpointing", action="store_true", help="layers are computed again in the backward pass")
    add_measuring(parser, _ROUNDS, peaks=False)
    add_output(parser)
    parser.set_defaults(run=functools.partial(guarded, measure=_train))


def _train(arguments: argparse.Namespace) -> int:
    from xeflash.bench.llm import rows, training

    if 1 in arguments.seq:
        raise ValueError("bench: --seq must be at least 2, as the loss is that of the next token, got 1")
    cells = product(
        TrainCell,
        model=arguments.model,
        layers=arguments.layers,
        dtype=arguments.dtype,
        batch=arguments.batch,
        seq=arguments.seq,
        checkpointing=arguments.checkpointing,
    )
    ways = tuple(dict.fromkeys(arguments.compare))
    return _measure(arguments, training.Training, cells, rows.TRAIN, ways, peaks=False)


def _measure(
    arguments: argparse.Namespace,
    kind: Any,
    cells: list[Any],
    layout: Layout,
    ways: tuple[Any, ...],
    peaks: bool,
) -> int:
    """Runs the cells and writes; 0 if every one was right, 1 if not."""
    from xeflash.bench import peak
    from xeflash.bench.limits import Peaks
    from xeflash.bench.llm import plot, rows, run
    from xeflash.bench.llm.models import check_models
    from xeflash.bench.runner import choose_device

    options = run.Options(choose_device(arguments.device), arguments.rounds, arguments.seed, ways)
    check_models(arguments.model, arguments.layers)
    meter = peak.Meter((), options.device) if peaks else None
    return report(
        arguments,
        run.run(kind, cells, options, meter),
        [f"{cell.label} {name}" for cell in cells for name in options.names],
        layout,
        header=lambda _: run.head(kind, options, meter.peaks if meter else Peaks()),
        figure=plot.figure,
        finish=lambda results: rows.beside_sdpa(results, meter.peaks if meter else Peaks()),
    )
