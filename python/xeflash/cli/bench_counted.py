"""`xeflash bench attention --block-mask` on a simulated device: its work is counted, as its times mean nothing."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

from xeflash.bench.cases import Case
from xeflash.cli import counted_blocks as blocks
from xeflash.cli.bench_shared import report

# Of what the command line does not say, in the place of the preset's.
_USUAL = {"phase": tuple(blocks.KERNELS), "dtype": ("bf16",), "heads": (1,), "head_dim": (64, 128), "seq": (4096,)}


def _refuse(arguments: argparse.Namespace) -> None:
    """Raises if what is asked for cannot be counted, or is measured on real devices only."""
    device = arguments.device
    if not arguments.block_mask:
        raise ValueError(f"bench: --device {device} needs --block-mask, whose work is counted")
    for name in ("rounds", "compare", "tuned", "plot"):
        if getattr(arguments, name) is not None:
            raise ValueError(f"bench: --{name} must be left out with --device {device}, whose times mean nothing")
    if others := set(arguments.phase or ()) - set(blocks.KERNELS):
        raise ValueError(
            f"bench: --phase must be of {', '.join(blocks.KERNELS)} with --device {device}, got {min(others)}"
        )
    if "fp32" in (arguments.dtype or ()):
        raise ValueError(f"bench: --dtype must be of bf16, fp16 with --device {device}: fp32 takes no dpas, got fp32")


def counted(arguments: argparse.Namespace, cases_of: Callable[[argparse.Namespace], Sequence[Case]]) -> int:
    """Counts the cases and writes; 0 if the dpas of each follow its density, 1 if not."""
    from xeflash.bench.environ import environment

    _refuse(arguments)
    for name, usual in _USUAL.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, usual)
    device = arguments.device.removeprefix("sim:")
    rows = blocks.expand(cases_of(arguments), device)
    blocks.enable(device)

    def header(_: Any) -> dict[str, object]:
        return {"environment": {**environment(), "device": f"{arguments.device} (simulated)"}, "method": blocks.METHOD}

    return report(
        arguments,
        blocks.run(rows, device, arguments.seed),
        [row.label for row in rows],
        blocks.LAYOUT,
        header=header,
        figure=lambda *_: None,
    )
