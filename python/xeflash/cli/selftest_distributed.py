"""`xeflash selftest --distributed`: checks that tensors arrive at other ranks as they were sent."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from xeflash.bench.cases import parse_size
from xeflash.cli.arguments import converter

if TYPE_CHECKING:
    from xeflash.distributed.check import TransportCheck

SECONDS = 900  # for all processes that it starts
_GROUP_SECONDS = 120  # for a message
_MOST_ON_CPU = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that concern ranks."""
    parser.add_argument(
        "--distributed",
        action="store_true",
        help="check transport between ranks and nothing else: send known patterns through each call of "
        "torch.distributed that xeflash.distributed can use, and compare what comes. Do this on every machine before "
        "you trust attention over ranks: XCCL is known to corrupt data without an error, for one on Arc Pro B60 in "
        "all_to_all_single and batch_isend_irecv. Below torchrun it takes part in that group, else it starts "
        "processes itself. Exits with 1 if anything arrives wrong",
    )
    parser.add_argument(
        "--nproc",
        metavar="N",
        type=converter(parse_size),
        help="with --distributed: processes to start (default: one per xpu device, at least 2; 2 on the CPU)",
    )


def refusal(arguments: argparse.Namespace) -> str:
    """Returns why these arguments contradict each other, or "" if they do not."""
    if not arguments.distributed:
        return "--nproc needs --distributed" if arguments.nproc is not None else ""
    if arguments.device.startswith("sim:"):
        return f"--distributed needs --device auto, cpu or xpu, got {arguments.device}: simulators send nothing"
    if arguments.jobs is not None or arguments.no_times:
        return f"{'--no-times' if arguments.no_times else '--jobs'} is not for --distributed, which times nothing"
    if arguments.nproc is not None and _is_rank():
        return "--nproc is not for a process of torchrun, whose --nproc-per-node says it"
    if arguments.nproc == 1:
        return "--nproc must be at least 2, got 1: one rank sends nothing"
    return ""


def run(arguments: argparse.Namespace) -> int:
    """Checks transport as a rank, or starts the ranks."""
    if importlib.util.find_spec("torch") is None:
        print("xeflash selftest: --distributed needs torch", file=sys.stderr)
        return 2
    import torch
    import torch.distributed as dist

    has_xpu = torch.xpu.is_available()
    if not dist.is_available() or (arguments.device == "xpu" and not (has_xpu and dist.is_xccl_available())):
        why = f"torch {torch.__version__} has {torch.xpu.device_count()} xpu devices"
        print(f"xeflash selftest: --distributed needs torch with XCCL for xpu, got {why}", file=sys.stderr)
        return 2
    device = "xpu" if has_xpu and dist.is_xccl_available() and arguments.device != "cpu" else "cpu"
    if _is_rank():
        return _as_rank(device, arguments)
    count = torch.xpu.device_count()
    ranks = arguments.nproc or (max(2, count) if device == "xpu" else _MOST_ON_CPU)
    if device == "xpu" and ranks > count:
        print(f"xeflash selftest: --nproc must be at most the xpu devices ({count}), got {ranks}", file=sys.stderr)
        return 2
    words = ["--device", device, *(["--json", str(arguments.json)] if arguments.json else [])]
    return _start(ranks, [sys.executable, "-m", "xeflash", "selftest", "--distributed", *words])


def _is_rank() -> bool:
    return all(name in os.environ for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"))


def _as_rank(device: str, arguments: argparse.Namespace) -> int:
    import torch
    import torch.distributed as dist

    from xeflash.distributed.check import check_transport

    if device == "xpu":
        torch.xpu.set_device(int(os.environ.get("LOCAL_RANK", os.environ["RANK"])))
    mine = not dist.is_initialized()
    if mine:
        backend = "cpu:gloo,xpu:xccl" if device == "xpu" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=_GROUP_SECONDS))
    first = dist.get_rank() == 0

    def tell(transport: str) -> None:
        if first:
            print(f"xeflash selftest: checking {transport}", file=sys.stderr, flush=True)

    found = check_transport(device=device, tell=tell)
    if first:
        print(found, flush=True)
        if arguments.json is not None:
            arguments.json.write_text(to_json(found), encoding="utf-8")
    if mine:
        dist.destroy_process_group()
    return 0 if found.ok else 1


def to_json(found: TransportCheck) -> str:
    """Returns everything that was found as one JSON object."""
    return json.dumps({"ok": found.ok, **asdict(found)}, indent=1) + "\n"


def _start(ranks: int, command: Sequence[str]) -> int:
    """Runs the command as each rank; returns 1 if one of them fails or does not end."""
    place = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    processes: list[subprocess.Popen[Any]] = []
    try:
        for rank in range(ranks):
            environment = os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(subprocess.Popen(command, env=environment))
        return _wait(processes)
    finally:
        for process in processes:
            with contextlib.suppress(OSError):
                process.kill()
            process.wait()


def _wait(processes: Sequence[subprocess.Popen[Any]]) -> int:
    end = time.monotonic() + SECONDS
    while True:
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code not in (None, 0, 1):  # the others would wait for it
                print(f"xeflash selftest: rank {rank} ended with {code}", file=sys.stderr)
                return 2 if code == 2 else 1
        if None not in codes:
            return 1 if any(codes) else 0
        if time.monotonic() > end:
            late = ", ".join(str(rank) for rank, code in enumerate(codes) if code is None)
            print(f"xeflash selftest: no end after {SECONDS} s of ranks {late}", file=sys.stderr)
            return 1
        time.sleep(0.05)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
