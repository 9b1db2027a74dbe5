"""`xeflash bench distributed`: context parallel on the ranks of this machine, and a model of it on many devices."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from typing import TYPE_CHECKING, Any

from xeflash.bench.cases import DTYPES, parse_choices, parse_size, parse_sizes
from xeflash.bench.environ import usable_cpus
from xeflash.cli.arguments import converter
from xeflash.cli.bench_shared import add_output, collect, exit_code, guarded, prepare_threads, warn_of_load, write

if TYPE_CHECKING:
    from xeflash.bench.distributed.model import Machine

# Defaults stand here and not in argparse: an option that is given where it has no meaning is refused.
_MEASURED: dict[str, Any] = {
    "nproc": 2,
    "way": ("ring", "all_gather", "all_to_all"),
    "shards": "zigzag",
    "compare": "one",
    "rounds": 5,
    "device": "auto",
    "threads": None,
    "seed": 0,
}
_MODEL = ("devices", "tflops", "efficiency", "efficiency_backward", "launch_us", "memory_gb", "memory_share",
          "memory_gbs", "per_node", "inside_gbs", "inside_us", "between_gbs", "between_us")  # fmt: skip
_CASES: dict[str, Any] = {"dtype": ("bf16",), "batch": (1,), "heads": (8,), "kv_heads": (2,), "head_dim": (128,)}
_MODEL_CASES: dict[str, Any] = {"dtype": ("bf16",), "batch": (1,), "heads": (32,), "kv_heads": (8,), "head_dim": (128,)}
_SEQ = (2048,)


def add_parsers(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "distributed",
        help="context parallel over ranks, way by way: bytes, waiting, memory, and time beside one process",
        description="Start ranks on this machine (or be one: torchrun ... -m xeflash bench distributed), run attention "
        "over them forward and backward by each way, check it against one process, count what is sent, and time it. "
        "With --model nothing runs: a model says which way is fastest on many devices, by inputs that are assumptions. "
        "Lists are comma lists, and 4k means 4096.",
    )
    sizes, size, positive = converter(parse_sizes), converter(parse_size), converter(_positive)
    cases = parser.add_argument_group("cases")
    cases.add_argument("--seq", metavar="LIST", type=sizes, help="tokens of all ranks (2k; --model: 32k,128k,1024k)")
    cases.add_argument("--dtype", metavar="LIST", type=converter(lambda text: parse_choices(text, DTYPES)), help="bf16")
    cases.add_argument("--batch", metavar="LIST", type=sizes, help="1")
    cases.add_argument("--heads", metavar="LIST", type=sizes, help="query heads (8; --model: 32)")
    cases.add_argument(
        "--kv-heads", metavar="LIST", type=sizes, help="they must divide the query heads (2; --model: 8)"
    )
    cases.add_argument("--head-dim", metavar="LIST", type=sizes, help="128")
    cases.add_argument("--causal", action=argparse.BooleanOptionalAction, default=True, help="default: causal")
    how = parser.add_argument_group("measuring")
    how.add_argument("--nproc", metavar="N", type=size, help="ranks to start (2); under torchrun it has the number")
    how.add_argument(
        "--way", metavar="LIST", type=converter(lambda text: parse_choices(text, _MEASURED["way"])), help="default: all"
    )
    how.add_argument("--shards", choices=("zigzag", "ranges"), help="default: zigzag")
    how.add_argument("--compare", choices=("one", "none"), help="with one process (the default), or unchecked")
    how.add_argument("--rounds", metavar="N", type=size, help=f"default {_MEASURED['rounds']}")
    how.add_argument("--device", choices=("auto", "cpu", "xpu"))
    how.add_argument("--threads", metavar="N", type=size, help="of each rank; default: its part of the CPUs")
    how.add_argument("--seed", metavar="N", type=int)
    model = parser.add_argument_group("a model of many devices")
    model.add_argument("--model", action="store_true", help="compute, by the inputs below; measure nothing")
    model.add_argument("--devices", metavar="LIST", type=sizes, help="8,16,32,64,128,256,512")
    for name, words in _MODEL_HELP.items():
        model.add_argument(
            f"--{name.replace('_', '-')}", metavar="X", type=size if name == "per_node" else positive, help=words
        )
    add_output(parser)
    parser.set_defaults(run=run)


_MODEL_HELP = {
    "tflops": "peak of a device, 10^12 operations/s",
    "efficiency": "of it, what attention reaches forward",
    "efficiency_backward": "the same backward",
    "launch_us": "of each launch",
    "memory_gb": "of a device",
    "memory_share": "of it, what a layer may use beyond q, k, v",
    "memory_gbs": "GB/s of a device's memory",
    "per_node": "devices of a node",
    "inside_gbs": "GB/s that a device sends inside a node",
    "inside_us": "of each message there",
    "between_gbs": "GB/s that a node sends, shared by its devices",
    "between_us": "of each message there",
}


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise ValueError(f"a positive number is wanted, got {text!r}")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Measure or compute, and write; 0 if every case was right, 1 if not, 2 if nothing could be measured."""
    try:
        _refuse_unused(arguments)
    except ValueError as error:
        print(f"xeflash {error}", file=sys.stderr)
        return 2
    if arguments.model:
        return guarded(argparse.Namespace(plot=arguments.plot, threads=None), lambda: _model(arguments))
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:  # a rank already
        return _under_torchrun(arguments)
    _fill(arguments, {**_MEASURED, **_CASES, "seq": _SEQ})
    arguments.threads = arguments.threads or max(1, usable_cpus() // arguments.nproc)
    return guarded(arguments, lambda: _start(arguments))


def _refuse_unused(arguments: argparse.Namespace) -> None:
    """Raise if an option is given that has no meaning here."""
    for name in _MEASURED if arguments.model else _MODEL:
        if getattr(arguments, name) is not None:
            where = "with" if arguments.model else "without"
            raise ValueError(f"bench: --{name.replace('_', '-')} must be left out {where} --model")


def _fill(arguments: argparse.Namespace, defaults: dict[str, Any]) -> None:
    for name, value in defaults.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)


def _start(arguments: argparse.Namespace) -> int:
    """Start the ranks; the number and the cases are checked before."""
    from xeflash.bench.distributed.launch import launch
    from xeflash.bench.distributed.rows import check_cases

    check_cases(_cases(arguments), arguments.nproc)
    warn_of_load()
    return launch(measure, (arguments,), arguments.nproc)


def _under_torchrun(arguments: argparse.Namespace) -> int:
    """Be a rank of those that torchrun has started."""
    world, rank = int(os.environ["WORLD_SIZE"]), os.environ["RANK"]
    try:
        if arguments.nproc not in (None, world):
            raise ValueError(f"bench: --nproc must be left out, or {world} as torchrun has it, got {arguments.nproc}")
        _fill(arguments, {**_MEASURED, **_CASES, "seq": _SEQ})
        local = int(os.environ.get("LOCAL_WORLD_SIZE", world))
        arguments.threads = arguments.threads or max(1, usable_cpus() // local)
        prepare_threads(arguments.threads)  # before torch is imported
        from xeflash.bench.distributed.rows import check_cases

        check_cases(_cases(arguments), world)
        if arguments.plot is not None:
            from xeflash.bench.plot import require_matplotlib

            require_matplotlib()
        return measure(arguments)
    except Exception as error:
        print(f"xeflash bench: rank {rank} failed: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        return 2


def _cases(arguments: argparse.Namespace) -> list[Any]:
    from xeflash.bench.distributed.rows import expand

    return expand(
        arguments.dtype,
        arguments.batch,
        arguments.heads,
        arguments.kv_heads,
        arguments.head_dim,
        arguments.seq,
        arguments.causal,
        arguments.shards,
    )


def measure(arguments: argparse.Namespace) -> int:
    """Measure as one rank of several; the first one writes."""
    import torch

    from xeflash.bench.distributed import ranks
    from xeflash.bench.distributed import run as runner
    from xeflash.bench.distributed.rows import LAYOUT, ONE
    from xeflash.bench.run import choose_device

    torch.set_num_threads(arguments.threads)
    rank = ranks.join(choose_device(arguments.device))
    options = runner.Options(arguments.way, arguments.rounds, arguments.seed, arguments.compare == "one")
    cases = _cases(arguments)
    results = runner.run(cases, options, rank)
    if not rank.first:
        for _ in results:
            pass
        ranks.leave()
        return 0
    names = [ONE] * options.compare + list(options.ways)
    labels = [f"{case.label}, {name}" for case in cases for name in names]
    collected, interrupted = collect(results, labels, lambda row: f"{row.case.label}, {row.way}")

    def figure(device: str) -> Any:
        from xeflash.bench.distributed import plot

        return plot.figure(collected, f"Context parallel, measured on {device}")

    write(arguments, runner.header(rank), collected, LAYOUT, figure)
    if not interrupted:  # else others may wait for this rank in the middle of a case
        ranks.leave()
    return exit_code(collected, interrupted)


def _model(arguments: argparse.Namespace) -> int:
    """Compute what the model says."""
    from xeflash.bench.distributed import model_rows
    from xeflash.bench.distributed.model import Layer

    machine = _machine(arguments)
    _fill(arguments, {**_MODEL_CASES, "seq": model_rows.TOKENS, "devices": model_rows.DEVICES, "shards": "zigzag"})
    layers = [
        Layer(case.seq, case.heads, case.kv_heads, case.head_dim, case.batch, case.dtype, case.causal)
        for case in _cases(arguments)
    ]
    results = model_rows.rows(layers, machine, arguments.devices)
    write(
        arguments,
        model_rows.header(machine),
        results,
        model_rows.LAYOUT,
        lambda _: model_rows.figure(results, machine),
    )
    return 0


def _machine(arguments: argparse.Namespace) -> Machine:
    from xeflash.bench.distributed.model import Machine

    given = {field.name: getattr(arguments, field.name) for field in dataclasses.fields(Machine)}
    return Machine(**{name: value for name, value in given.items() if value is not None})
