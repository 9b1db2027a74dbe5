"""A MODEL of the seconds that context parallel takes on many devices: arithmetic on stated inputs, not a measurement.

A node has U devices with links of their own among them; nodes have one link each, which their devices share.

    compute   flops / (peak x efficiency) + launch            of all queries and keys, in equal parts by zig-zag
    ring      a step's transport hides behind a step's compute: (W-1) max(compute, transport) + compute, and the
              state in fp32 is read and written once more for each step
    all_gather    (W-1) transports of a shard, nothing hidden, + compute; backward K and V once more, and dK and dV
    all_to_all    each rank sends 1/W of q, k, v to every other, and the output back, nothing hidden, + compute
    mesh      all_to_all among the devices of a node, as many as divide the heads, a ring over those groups

What it leaves out: other traffic on the links, devices that run at different speeds, how efficiency falls with short
rows, the rest of a model's layer, and what a library does better or worse than these patterns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from xeflash.distributed.cost import BYTES, Cost, How, World, cost

MODEL_WAYS = ("ring", "all_gather", "all_to_all", "mesh")
_MESH = ("ring", "all_to_all")
_NAMES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass(frozen=True)
class Machine:
    """The inputs; every one of them is an assumption until it is measured.

    Attributes:
        tflops: peak of a device in the type of q, in 10^12 operations a second.
        efficiency: of that, what attention reaches in the forward pass.
        efficiency_backward: the same in the backward pass.
        launch_us: what a launch costs beyond its work.
        memory_gb: memory of a device.
        memory_share: the part of it that a layer may use beyond its q, k and v; the rest is a model's.
        memory_gbs: what it reads and writes, GB a second.
        per_node: devices of a node.
        inside_gbs: what a device sends inside a node, GB a second in one direction.
        inside_us: what a message costs there beyond its bytes.
        between_gbs: what a node sends to others, GB a second in one direction, shared by its devices.
        between_us: what a message costs there beyond its bytes.
    """

    tflops: float = 100.0
    efficiency: float = 0.5
    efficiency_backward: float = 0.4
    launch_us: float = 10.0
    memory_gb: float = 24.0
    memory_share: float = 0.25
    memory_gbs: float = 450.0
    per_node: int = 8
    inside_gbs: float = 12.0
    inside_us: float = 20.0
    between_gbs: float = 25.0
    between_us: float = 30.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value <= 0:
                raise ValueError(f"Machine: {name} must be positive, got {value}")
        for name in ("efficiency", "efficiency_backward", "memory_share"):
            if getattr(self, name) > 1:
                raise ValueError(f"Machine: {name} must be at most 1, got {getattr(self, name)}")


@dataclass(frozen=True)
class Layer:
    """The attention of one layer, of all tokens; `tokens` counts those of one sequence on all devices."""

    tokens: int
    heads: int = 32
    kv_heads: int = 8
    dim: int = 128
    batch: int = 1
    dtype: str = "bf16"
    causal: bool = True

    @property
    def flops(self) -> float:
        """Multiplications and additions of the forward pass; the causal triangle is half."""
        return 4.0 * self.batch * self.heads * self.tokens**2 * self.dim / (2 if self.causal else 1)


@dataclass(frozen=True)
class Seconds:
    """What the model says of a way.

    Attributes:
        cost: its bytes, messages and memory.
        forward: seconds of the forward pass.
        backward: seconds of the backward pass.
        compute: seconds of both if nothing were sent.
        fits: whether its memory beyond q, k and v is within the machine's share.
        refused: why it cannot run, or "".
    """

    cost: Cost
    forward: float = 0.0
    backward: float = 0.0
    compute: float = 0.0
    fits: bool = True
    refused: str = ""

    @property
    def total(self) -> float:
        """Seconds of both passes."""
        return self.forward + self.backward

    @property
    def efficiency(self) -> float:
        """The part of this time that compute alone would take."""
        return self.compute / self.total if self.total else 0.0


def seconds(layer: Layer, machine: Machine, world: int, how: str) -> Seconds:
    """Returns the model's seconds of a layer on so many devices.

    Args:
        layer: the attention.
        machine: the inputs.
        world: the number of devices; it must divide the tokens, and a node's devices divide it where it is larger.
        how: "ring", "all_gather", "all_to_all" or "mesh".
    """
    if how not in MODEL_WAYS:
        raise ValueError(f"seconds: how must be one of {', '.join(MODEL_WAYS)}, got {how!r}")
    if layer.tokens % world or (world > machine.per_node and world % machine.per_node):
        raise ValueError(
            f"seconds: world must divide the tokens ({layer.tokens}), and be a multiple of the devices of a node "
            f"({machine.per_node}) where it is larger, got {world}"
        )
    ranks = shared_heads(layer, machine, world)
    each = _cost(layer, (world // ranks, ranks), _MESH) if how == "mesh" else _cost(layer, world, how)
    if how == "mesh" and 1 in (ranks, world // ranks):
        return Seconds(each, refused="one of the mesh's sides would have one rank")
    if each.refused:
        return Seconds(each, refused=each.refused)
    rates = (machine.efficiency, machine.efficiency_backward)
    whole = [
        factor * layer.flops / world / (1e12 * machine.tflops * rate)
        for factor, rate in zip((1.0, 2.5), rates, strict=True)
    ]
    forward, backward = {"ring": _ring, "all_gather": _gather, "all_to_all": _exchange, "mesh": _mesh}[how](
        layer, machine, world, whole
    )
    fits = each.memory <= machine.memory_share * machine.memory_gb * 1e9
    return Seconds(each, forward, backward, sum(whole) + 2e-6 * machine.launch_us, fits)


def best(layer: Layer, machine: Machine, world: int) -> dict[str, Seconds]:
    """Returns the ways that can run and fit, the fastest one first; all that can run where none fits."""
    found = {how: seconds(layer, machine, world, how) for how in MODEL_WAYS}
    possible = {how: each for how, each in found.items() if not each.refused}
    fitting = {how: each for how, each in possible.items() if each.fits} or possible
    return dict(sorted(fitting.items(), key=lambda item: item[1].total))


def shared_heads(layer: Layer, machine: Machine, world: int) -> int:
    """Returns how many devices of a node exchange heads in a mesh."""
    return math.gcd(layer.heads, min(machine.per_node, world))


def _cost(layer: Layer, world: World, how: How) -> Cost:
    ranks = math.prod(world) if isinstance(world, tuple) else world
    rows = layer.tokens // ranks
    shape = (layer.batch, rows, layer.heads, layer.dim), (layer.batch, rows, layer.kv_heads, layer.dim)
    return cost(*shape, _NAMES[layer.dtype], world, how)


def _kv(layer: Layer, rows: float, kv_heads: float) -> float:
    """Elements of K and V."""
    return 2.0 * layer.batch * rows * kv_heads * layer.dim


def _element(layer: Layer) -> int:
    return BYTES[_NAMES[layer.dtype]]


def _hop(machine: Machine, size: float, flows: int | None) -> float:
    """Seconds of a message to the next rank; `flows` of a node leave it at once, None: it stays inside."""
    if flows is None:
        return 1e-6 * machine.inside_us + size / (1e9 * machine.inside_gbs)
    rate = min(machine.inside_gbs, machine.between_gbs / flows)
    return 1e-6 * machine.between_us + size / (1e9 * rate)


def _leaves(machine: Machine, world: int) -> int | None:
    """Of a ring over all devices in order, one flow leaves each node."""
    return 1 if world > machine.per_node else None


def _steps(
    machine: Machine, ranks: int, whole: list[float], out: float, hops: tuple[float, float]
) -> tuple[float, float]:
    """Both passes of a ring: `out` elements of the state, seconds of a hop of K and V, and of dK and dV."""
    launch, (of_kv, of_grads) = 1e-6 * machine.launch_us, hops
    state = 8 * out / (1e9 * machine.memory_gbs)  # read and written, fp32
    forward, backward = (part / ranks + launch + state for part in whole)
    there = (ranks - 1) * max(forward, of_kv) + forward
    back = (ranks - 1) * max(backward, of_kv + of_grads) + backward + (of_grads if ranks > 1 else 0.0)
    return there, back


def _ring(layer: Layer, machine: Machine, world: int, whole: list[float]) -> tuple[float, float]:
    rows = layer.tokens / world
    kv, flows = _kv(layer, rows, layer.kv_heads), _leaves(machine, world)
    hops = _hop(machine, kv * _element(layer), flows), _hop(machine, kv * 4, flows)
    return _steps(machine, world, whole, layer.batch * rows * layer.heads * layer.dim, hops)


def _gather(layer: Layer, machine: Machine, world: int, whole: list[float]) -> tuple[float, float]:
    kv, flows = _kv(layer, layer.tokens / world, layer.kv_heads), _leaves(machine, world)
    launch = 1e-6 * machine.launch_us
    of_kv, of_grads = ((world - 1) * _hop(machine, kv * size, flows) for size in (_element(layer), 4))
    return whole[0] + launch + of_kv, whole[1] + launch + of_kv + of_grads


def _exchanged(layer: Layer, machine: Machine, rows: float, ranks: int, per_node: int) -> float:
    """Seconds to send q, k, v by heads and the output back, each among so many ranks, `per_node` of them in a node."""
    copies = math.lcm(layer.kv_heads, ranks)
    size = _element(layer) * (2 * layer.batch * rows * layer.heads * layer.dim + _kv(layer, rows, copies))
    inside, away = (per_node - 1) / ranks * size, (ranks - per_node) / ranks * size
    bytes_s = max(inside / (1e9 * machine.inside_gbs), per_node * away / (1e9 * machine.between_gbs))
    # Two exchanges; a rank sends its messages one after another.
    return bytes_s + 2e-6 * ((per_node - 1) * machine.inside_us + (ranks - per_node) * machine.between_us)


def _exchange(layer: Layer, machine: Machine, world: int, whole: list[float]) -> tuple[float, float]:
    sent = _exchanged(layer, machine, layer.tokens / world, world, min(world, machine.per_node))
    launch = 1e-6 * machine.launch_us
    return whole[0] + launch + sent, whole[1] + launch + sent


def _mesh(layer: Layer, machine: Machine, world: int, whole: list[float]) -> tuple[float, float]:
    ranks = shared_heads(layer, machine, world)
    groups, rows = world // ranks, layer.tokens / world
    sent = _exchanged(layer, machine, rows, ranks, ranks)
    kv = _kv(layer, rows * ranks, math.lcm(layer.kv_heads, ranks) / ranks)
    flows = ranks if world > machine.per_node else None  # all of a group send at once
    hops = _hop(machine, kv * _element(layer), flows), _hop(machine, kv * 4, flows)
    out = layer.batch * rows * layer.heads * layer.dim
    forward, backward = _steps(machine, groups, whole, out, hops)
    return forward + sent, backward + sent
