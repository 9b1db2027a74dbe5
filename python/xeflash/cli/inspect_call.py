"""Shares of a call over a device: the part of `xeflash inspect` that reads no machine code."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from xeflash.bench.cases import DTYPES, Case, parse_size
from xeflash.cli.arguments import converter

HERE = ("cpu", "xpu")
_CALLS = ("prefill", "decode", "backward")
_OPTIONS = ("units", "dtype", "batch", "heads", "kv_heads", "head_dim", "seq", "kv_len", "causal")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a call."""
    size = converter(parse_size)
    group = parser.add_argument_group("call", "of xeflash.attention on contiguous (B, H, S, D) arrays; 4k means 4096")
    group.add_argument("--call", choices=_CALLS, help="say how it is shared out: decode has one query a sequence")
    group.add_argument("--units", metavar="N", type=size, help="compute units of another device of the same kind")
    group.add_argument("--dtype", choices=DTYPES, help="default: bf16")
    group.add_argument("--batch", metavar="N", type=size, help="default: 1")
    group.add_argument("--heads", metavar="N", type=size, help="of queries; default: 32")
    group.add_argument("--kv-heads", metavar="N", type=size, help="default: as many")
    group.add_argument("--head-dim", metavar="N", type=size, help="default: 128")
    group.add_argument("--seq", metavar="N", type=size, help="queries, but of decode; default: 4096")
    group.add_argument("--kv-len", metavar="N", type=size, help="keys; default: as many as queries, of decode 4096")
    group.add_argument("--causal", action=argparse.BooleanOptionalAction, help="mask, but of decode; default: causal")


def refuse_unused(arguments: argparse.Namespace) -> None:
    """Raises an error for an option that this call, or a command without a call, does not have."""
    unused = _OPTIONS if arguments.call is None else ("seq", "causal") if arguments.call == "decode" else ()
    for name in unused:
        if (value := getattr(arguments, name)) is not None:
            where = "without --call" if arguments.call is None else "with --call decode"
            raise ValueError(f"--{name.replace('_', '-')} must be left out {where}, got {value}")


def case_of(arguments: argparse.Namespace) -> Case:
    """Returns the case that the options describe."""
    decode = arguments.call == "decode"
    heads = arguments.heads or 32
    queries = 1 if decode else arguments.seq or 4096
    return Case(
        phase=arguments.call,
        dtype=arguments.dtype or "bf16",
        batch=arguments.batch or 1,
        heads=heads,
        kv_heads=arguments.kv_heads or heads,
        head_dim=arguments.head_dim or 128,
        seq_q=queries,
        seq_k=arguments.kv_len or (4096 if decode else queries),
        causal=not decode and arguments.causal is not False,
    )


def described(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the call and its figures in JSON's types."""
    from xeflash.bench.shares import call_of, shares_here
    from xeflash.jit.calls import shares_of
    from xeflash.jit.provide import source_of
    from xeflash.sim.binary import vector_engines
    from xeflash.tune import xe
    from xeflash.tune.desc import Desc
    from xeflash.tune.table import level_of

    case, device = case_of(arguments), arguments.device
    if device in HERE:
        shares = shares_here(case, device, arguments.units)
    elif device in xe.DEVICES:
        shares = shares_of(call_of(case), xe.DEVICES[device], arguments.units or vector_engines(device))
    else:
        raise ValueError(f"--device must be one that has kernels, of {', '.join(xe.DEVICES)}, got {device}")
    return {
        **dataclasses.asdict(case),
        "device": device,
        "arch": shares.kernels[0].arch,
        "compute_units": shares.units,
        "device_threads": shares.device_threads,
        "schedule_from": shares.schedule_from.name,
        "splits": shares.splits,
        "partial_bytes": shares.partial_bytes,
        "launches": [
            {
                "kernel": source_of(launch.desc).name,
                "tiles_from": level_of(launch.desc).name if isinstance(launch.desc, Desc) else "table",
                "entry": launch.entry,
                "groups": launch.groups,
                "threads_of_group": launch.threads_of_group,
                "threads": launch.threads,
                "percent_of_device": shares.percent(launch),
                "waves": shares.waves(launch),
            }
            for launch in shares.launches
        ],
    }


def print_call(call: dict[str, Any]) -> None:
    """Prints the call as a table: a row for each launch."""
    from rich.console import Console
    from rich.table import Table

    from xeflash.bench.cases import Case
    from xeflash.bench.numbers import device_share, size

    case = Case(**{field.name: call[field.name] for field in dataclasses.fields(Case)})
    table = Table(title=case.label, title_justify="left", box=None)
    for name in ("launch", "groups", "threads of a group", "threads", "of the device"):
        table.add_column(name, justify="left" if name == "launch" else "right")
    for launch in call["launches"]:
        figures = (launch["entry"], launch["groups"], launch["threads_of_group"], launch["threads"])
        table.add_row(*map(str, figures), device_share(launch["percent_of_device"]))
    console = Console(highlight=False)
    console.print(table)
    kernels = dict.fromkeys(f"{launch['kernel']} (tiles: {launch['tiles_from']})" for launch in call["launches"])
    splits = "keys are not split" if call["splits"] == 1 else f"keys are in {call['splits']} splits"
    console.print(
        f"{call['device']}: {call['compute_units']} compute units, work for {call['device_threads']} threads at a "
        f"time (schedule: {call['schedule_from']}); {splits}; {size(call['partial_bytes'])} of partial results; "
        f"kernels: {', '.join(kernels)}"
    )
