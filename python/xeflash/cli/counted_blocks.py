"""Counts of simulated GPUs for calls with random masks of blocks, beside the same calls without a mask."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from xeflash.bench.blocks import keywords_of
from xeflash.bench.cases import Case
from xeflash.bench.numbers import number
from xeflash.bench.rows import Result, Timed
from xeflash.bench.tables import NONE, Cells, Layout

KERNELS = {"prefill": ("flash_fwd",), "backward": ("flash_bwd_dq", "flash_bwd_dkv")}  # of a phase that can be counted
TOLERANCE = 0.05  # of dpas, relative to the share of blocks that is listed
METHOD = [
    "each row of blocks lists the same number of key blocks, drawn at random, the same ones for all heads; listed "
    "blocks are full",
    "dpas, bytes and instructions are those of a kernel of the simulated device relative to the same call without a "
    f"mask; a row fails where dpas / density is not within {TOLERANCE:.0%} of 1",
]


def enable(*devices: str) -> None:
    """Simulates devices without checks, and with room for the waits of long groups (`XEFLASH_SIM_MAX_INSTRUCTIONS`)."""
    from xeflash import sim

    os.environ.setdefault("XEFLASH_SIM_MAX_INSTRUCTIONS", str(10**11))
    sim.enable(*devices, check="none")


def records_of(case: Case, device: str, **mask: Any) -> dict[str, Any]:
    """Runs a case's call on a simulated device that is enabled; returns the records of its launches by their kernels.

    Args:
        case: the call; its own blocks are no part of it.
        device: the name of the device, such as bmg.
        mask: more keywords of the call; arrays are of int32.
    """
    from xeflash import _core, sim
    from xeflash.bench.shares import call_of
    from xeflash.selftest.arrays import UsmArrays
    from xeflash.selftest.values import Values

    devices = _core.devices()
    gpus = [i for i, facts in enumerate(devices) if facts["backend"] == "level_zero"]
    arrays = UsmArrays(_core.new_queue(gpus[sim.enabled().index(device)]), True)
    generator = np.random.default_rng(0)

    def put(values: Any) -> Any:
        return arrays.put(Values.of(values, "int32")) if isinstance(values, np.ndarray) else values

    call = call_of(
        dataclasses.replace(case, share=None),
        lambda shape, dtype: arrays.put(Values.of(generator.standard_normal(shape, np.float32), dtype)),
        **{name: put(values) for name, values in mask.items()},
    )
    sim.clear_caches()
    sim.clear_launches()
    call()
    arrays.synchronize()
    return {record.kernel.removeprefix("__sycl_kernel_"): record for record in sim.last_launches()}


def of_dense(record: Any, dense: Any) -> dict[str, float]:
    """Returns the counts of a launch relative to those of the call without a mask."""
    moved, beside = (x.global_read + x.global_written for x in (record, dense))
    found = {"bytes": moved / beside, "instructions": record.instructions / dense.instructions}
    return {"dpas": record.dpas / dense.dpas, **found} if dense.dpas else found


@dataclass(frozen=True)
class Row(Timed, Case):
    """A case, one of its kernels on a simulated device, and the counts of it relative to the call without a mask."""

    device: str = ""
    kernel: str = ""
    density: float | None = None
    dpas: float | None = None
    dpas_of_density: float | None = None
    bytes_of_density: float | None = None
    instructions: float | None = None
    spilled: int | None = None

    @property
    def section(self) -> str:
        """Returns the table that this row is in."""
        return self.phase


def _count(name: str) -> Any:
    return lambda row: NONE if getattr(row, name) is None else f"{getattr(row, name):.3f}"


def _status(row: Row) -> str:
    return row.status if row.status == "ok" else f"{row.status}: {row.note}"


_CELLS: Cells = {
    "device": lambda r: r.device,
    "dtype": lambda r: r.dtype,
    "B": lambda r: str(r.batch),
    "Hq/Hkv": lambda r: f"{r.heads}/{r.kv_heads}",
    "D": lambda r: str(r.head_dim),
    "S": lambda r: str(r.seq_q) if r.seq_q == r.seq_k else f"{r.seq_q} x {r.seq_k}",
    "block": lambda r: str(r.block_size),
    "kernel": lambda r: r.kernel,
    "density": lambda r: number(r.density),
    "dpas": _count("dpas"),
    "dpas / density": _count("dpas_of_density"),
    "bytes / density": _count("bytes_of_density"),
    "instructions": _count("instructions"),
    "spilled": lambda r: NONE if r.spilled is None else str(r.spilled),
    "status": _status,
}
LAYOUT = Layout(
    Row,
    dict.fromkeys(KERNELS, _CELLS),
    case=("device", "dtype", "B", "Hq/Hkv", "D", "S", "block"),
    words={
        "density": "the share of key blocks that each row of blocks lists",
        "dpas": "relative to the call without a mask, as instructions are",
    },
)


def expand(cases: Sequence[Case], device: str) -> list[Row]:
    """Returns a row for each kernel of each case."""
    return [
        Row(**dataclasses.asdict(case), device=device, kernel=kernel)
        for case in cases
        for kernel in KERNELS[case.phase]
    ]


def measured(row: Row, records: Mapping[str, Any], dense: Mapping[str, Any]) -> Row:
    """Returns a row with the counts of its kernel."""
    found, density = of_dense(records[row.kernel], dense[row.kernel]), row.listed
    dpas = found.get("dpas")
    right = dpas is not None and abs(dpas / density - 1) <= TOLERANCE
    return dataclasses.replace(
        row,
        status="ok" if right else "failed",
        note="" if right else "no dpas" if dpas is None else f"dpas / density is {dpas / density:.3f}",
        density=density,
        dpas=dpas,
        dpas_of_density=None if dpas is None else dpas / density,
        bytes_of_density=found["bytes"] / density,
        instructions=found["instructions"],
        spilled=records[row.kernel].spill_bytes,
    )


def run(rows: Sequence[Row], device: str, seed: int) -> Iterator[Result]:
    """Yields the results of rows one by one; each call runs once, and that without a mask once for all shares."""
    from xeflash.bench.check import ERRORS, said

    calls: dict[Case, Mapping[str, Any]] = {}

    def records(case: Case) -> Mapping[str, Any]:
        if case not in calls:
            calls[case] = records_of(case, device, **(keywords_of(case, seed) if case.share else {}))
        return calls[case]

    for row in rows:
        case = Case(**{field.name: getattr(row, field.name) for field in dataclasses.fields(Case)})
        try:
            yield Result(measured(row, records(case), records(dataclasses.replace(case, share=None, block_size=0))))
        except ERRORS as error:
            yield Result(dataclasses.replace(row, status="failed", note=said(error)))
