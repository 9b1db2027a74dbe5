"""The model's seconds as a table and a picture: which way wins on how many devices, by the inputs that stand above."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xeflash.bench.distributed.model import MODEL_WAYS, Layer, Machine, best, seconds
from xeflash.bench.formats import Layout
from xeflash.bench.numbers import number, percent, size
from xeflash.bench.rows import Result

DEVICES = (8, 16, 32, 64, 128, 256, 512)
TOKENS = (32768, 131072, 1048576)
METHOD = [
    "a MODEL: arithmetic on the inputs above, which are assumptions; nothing here was measured",
    "milliseconds of one layer's attention, forward and backward pass; * marks the fastest way that fits in the "
    "memory, - a way that cannot run, ! one that needs more memory than the inputs allow",
    "efficiency: the part of the fastest way's time that computing alone would take",
    "xeflash/bench/distributed/model.py says what it counts, and what it leaves out",
]


@dataclass(frozen=True)
class ModelRow:
    """What the model says of one length on so many devices. Times are milliseconds; None: that way cannot run."""

    tokens: int
    devices: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    causal: bool
    fastest: str
    efficiency: float
    sent_bytes: int
    memory_bytes: int
    ring_ms: float | None = None
    all_gather_ms: float | None = None
    all_to_all_ms: float | None = None
    mesh_ms: float | None = None
    too_large: str = ""
    status: str = "ok"
    note: str = ""

    @property
    def section(self) -> str:
        """There is one table."""
        return "model, not measured"


def _time(way: str) -> Callable[[ModelRow], str]:
    def cell(row: ModelRow) -> str:
        value = getattr(row, f"{way}_ms")
        marks = ("*" if row.fastest == way else "") + ("!" if way in row.too_large.split() else "")
        return number(value) + marks

    return cell


LAYOUT = Layout(
    ModelRow,
    {
        "model, not measured": {
            "tokens": lambda r: str(r.tokens),
            "Hq/Hkv": lambda r: f"{r.heads}/{r.kv_heads}",
            "D": lambda r: str(r.head_dim),
            "dtype": lambda r: r.dtype,
            "causal": lambda r: "yes" if r.causal else "no",
            "devices": lambda r: str(r.devices),
            "tokens a device": lambda r: str(r.tokens // r.devices),
            **{f"{way} ms": _time(way) for way in MODEL_WAYS},
            "efficiency": lambda r: percent(100 * r.efficiency),
            "sent": lambda r: size(r.sent_bytes),
            "memory": lambda r: size(r.memory_bytes),
        }
    },
    ("tokens", "Hq/Hkv", "D", "dtype", "causal"),
    ("memory", "sent", "tokens a device"),
    "a model, not a measurement; *: the fastest way that fits; !: it needs more memory than the inputs allow; sent and "
    "memory: those of the fastest way, per device and layer",
)


def header(machine: Machine) -> dict[str, object]:
    """Returns the block above the rows: the inputs, and what the numbers are."""
    words = {name: f"{value:g}" for name, value in dataclasses.asdict(machine).items()}
    return {"environment": {"device": "none: a model", "inputs": words}, "method": METHOD}


def rows(layers: Sequence[Layer], machine: Machine, devices: Sequence[int]) -> list[Result]:
    """Returns a row for each length and number of devices."""
    return [Result(_row(layer, machine, world)) for layer in layers for world in devices]


def _row(layer: Layer, machine: Machine, world: int) -> ModelRow:
    found = {way: seconds(layer, machine, world, way) for way in MODEL_WAYS}
    fastest, winner = next(iter(best(layer, machine, world).items()))
    times: dict[str, Any] = {f"{way}_ms": 1e3 * each.total for way, each in found.items() if not each.refused}
    return ModelRow(
        layer.tokens,
        world,
        layer.heads,
        layer.kv_heads,
        layer.dim,
        layer.dtype,
        layer.causal,
        fastest,
        winner.efficiency,
        winner.cost.bytes,
        winner.cost.memory,
        too_large=" ".join(way for way, each in found.items() if not each.refused and not each.fits),
        **times,
    )


def figure(results: Sequence[Result], machine: Machine) -> Any:
    """Returns the picture as matplotlib's Figure: a panel per length, the efficiency of each way against devices."""
    from xeflash.bench.plot import panels, powers_of_two, with_legend

    lengths = list(dict.fromkeys(result.row.tokens for result in results))
    figure, axes = panels(len(lengths), f"A model of context parallel, not a measurement\n{inputs(machine)}")
    for axis, tokens in zip(axes, lengths, strict=True):
        mine: list[ModelRow] = [result.row for result in results if result.row.tokens == tokens]
        for i, way in enumerate(MODEL_WAYS):
            points = [(row.devices, _efficiency(row, way), way in row.too_large.split()) for row in mine]
            here = [(x, y, large) for x, y, large in points if y is not None]
            axis.plot([x for x, _, _ in here], [y for _, y, _ in here], "-", color=f"C{i}", label=way)
            for large, marker in ((False, "o"), (True, "x")):
                some = [(x, y) for x, y, z in here if z == large]
                axis.plot([x for x, _ in some], [y for _, y in some], marker, color=f"C{i}")
        powers_of_two(axis, [row.devices for row in mine], "devices")
        axis.set_ylim(0, 105)
        axis.set_ylabel("% of the time that computes")
        share = f"{machine.memory_share * machine.memory_gb:g}"
        axis.set_title(f"{tokens} tokens, forward and backward (x: needs more than {share} GB)")
    return with_legend(figure)


def _efficiency(row: ModelRow, way: str) -> float | None:
    """Per cent of a way's time that computing alone would take."""
    mine = getattr(row, f"{way}_ms")
    return None if mine is None else 100 * row.efficiency * getattr(row, f"{row.fastest}_ms") / mine


def inputs(machine: Machine) -> str:
    """Returns the inputs in words."""
    return (
        f"{machine.tflops:g} TFLOP/s at {machine.efficiency:.0%} and {machine.efficiency_backward:.0%}, "
        f"{machine.memory_gbs:g} GB/s of memory; {machine.per_node} devices a node; a device sends "
        f"{machine.inside_gbs:g} GB/s inside, a node {machine.between_gbs:g} GB/s; "
        f"{machine.inside_us:g} and {machine.between_us:g} us a message, {machine.launch_us:g} us a launch"
    )
