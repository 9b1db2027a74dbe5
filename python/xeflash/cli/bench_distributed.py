"""`xeflash bench distributed`: context parallel on the ranks of this machine."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from xeflash.bench.cases import DTYPES, product
from xeflash.bench.environ import usable_cpus
from xeflash.cli.bench_shared import (
    LISTS,
    SIZES,
    add_lists,
    add_measuring,
    add_output,
    add_size,
    guarded,
    prepare_threads,
    report,
)

_WAYS = ("ring", "all_gather", "all_to_all")


def add_parsers(commands: Any) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "distributed",
        help="context parallel over ranks, way by way: bytes, waiting, memory, and time beside one process",
        description="Start ranks on this machine (or be one: torchrun ... -m xeflash bench distributed), run attention "
        "over them forward and backward by each way, check it against one process, count what is sent, and time it. "
        f"{LISTS}",
    )
    cases = parser.add_argument_group("cases")
    add_lists(
        cases,
        seq=(SIZES, (2048,), "tokens of all ranks"),
        dtype=(DTYPES, ("bf16",), ""),
        batch=(SIZES, (1,), ""),
        heads=(SIZES, (8,), "query heads"),
        kv_heads=(SIZES, (2,), "they must divide the query heads"),
        head_dim=(SIZES, (128,), ""),
    )
    cases.add_argument("--causal", action=argparse.BooleanOptionalAction, default=True, help="default: causal")
    how = add_measuring(parser, 5, peaks=False, compare=("one", "none"), text="each takes both passes by each way")
    add_size(how, "nproc", "ranks to start; default: 2; under torchrun it has the number")
    add_lists(how, way=(_WAYS, _WAYS, ""))
    how.add_argument("--shards", choices=("zigzag", "ranges"), default="zigzag")
    add_output(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Measures and writes; 0 if every case was right, 1 if not, 2 if nothing could be measured."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:  # a rank already
        return _under_torchrun(arguments)
    arguments.nproc = arguments.nproc or 2
    arguments.threads = arguments.threads or max(1, usable_cpus() // arguments.nproc)
    return guarded(arguments, _start)


def _start(arguments: argparse.Namespace) -> int:
    """Starts the ranks; the number and the cases are checked before."""
    from xeflash.bench.distributed.launch import launch
    from xeflash.bench.distributed.rows import check_cases

    check_cases(_cases(arguments), arguments.nproc)
    return launch(measure, (arguments,), arguments.nproc)


def _under_torchrun(arguments: argparse.Namespace) -> int:
    """Makes this process a rank of those that torchrun has started."""
    world, rank = int(os.environ["WORLD_SIZE"]), os.environ["RANK"]
    try:
        if arguments.nproc not in (None, world):
            raise ValueError(f"bench: --nproc must be left out, or {world} as torchrun has it, got {arguments.nproc}")
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
    from xeflash.bench.distributed.rows import DistributedCase

    names = ("dtype", "batch", "heads", "kv_heads", "head_dim", "seq", "causal", "shards")
    return product(DistributedCase, **{name: getattr(arguments, name) for name in names})


def measure(arguments: argparse.Namespace) -> int:
    """Measures as one rank of several; the first one writes."""
    import torch

    from xeflash.bench.distributed import ranks
    from xeflash.bench.distributed import run as runner
    from xeflash.bench.distributed.rows import LAYOUT, ONE, DistributedCase
    from xeflash.bench.rows import with_ratios
    from xeflash.bench.runner import choose_device

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
    code = report(
        arguments,
        results,
        [f"{case.label}, {name}" for case in cases for name in names],
        LAYOUT,
        header=lambda _: runner.header(rank),
        figure=lambda found, device: runner.figure(found, f"Context parallel, measured on {device}"),
        finish=lambda found: with_ratios(found, DistributedCase, ONE),
    )
    if code != 130:  # else others may wait for this rank in the middle of a case
        ranks.leave()
    return code
