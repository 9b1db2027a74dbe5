"""Costs of context parallel attention: bytes that are sent and memory, from shapes alone, before anything runs.

    print(cost_table((1, 8192, 32, 128), (1, 8192, 8, 128), "bfloat16", 8))    # a shard of 8192 tokens, on 8 ranks

Letters: W ranks; e bytes of an element; q, o and kv are elements of a shard: of Q, of O, of K and V together; kv' is kv
with heads copied until W divides them.

| way | bytes forward | bytes backward | messages | memory |
|---|---|---|---|---|
| ring | (W-1) kv e | (W-1) kv (e + 4) | W-1, then 2 (W-1) | the same for each W |
| all_gather | (W-1) kv e | (W-1) kv (e + 4) | 1, then 2 | grows with W: about 2.5 W kv e, then 16 W kv |
| all_to_all | (W-1)/W e (q + o + kv') | the same | 2, then 2 | some copies of the shard |

Over two groups, heads are exchanged in the inner one of U ranks; in the outer one keys of U times the rows and 1/U of
the heads travel by one of the other ways. Windows and documents may let a ring end sooner: these numbers are without.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WAYS = ("all_gather", "all_to_all", "ring")  # between equal bytes, choose() takes the way with fewer steps
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}
_FP32 = 4

World = int | tuple[int, int]
How = str | tuple[str, str]


@dataclass(frozen=True)
class Cost:
    """The bytes that one rank sends and holds for one call in one layer.

    Attributes:
        how: "ring", "all_gather", "all_to_all", or the ways of two groups.
        world: ranks, or those of two groups, the outer one first.
        bytes_forward: bytes that this rank sends to others in the forward pass.
        bytes_backward: the same of the backward pass; 0 if there is none.
        messages_forward: how often it sends in the forward pass: steps of a ring, collectives.
        messages_backward: the same of the backward pass.
        memory_forward: bytes that it holds at most beyond its q, k and v in the forward pass, the output included.
        memory_backward: the same of both passes together, which end with gradients; 0 if there is no backward pass.
            The numbers are those of the largest tensors, an LSE and masks have little more.
        refused: why this way cannot run with these shapes, or "".
    """

    how: How
    world: World
    bytes_forward: int = 0
    bytes_backward: int = 0
    messages_forward: int = 0
    messages_backward: int = 0
    memory_forward: int = 0
    memory_backward: int = 0
    refused: str = ""

    @property
    def bytes(self) -> int:
        """Returns the bytes that both passes send."""
        return self.bytes_forward + self.bytes_backward

    @property
    def messages(self) -> int:
        """Returns the messages of both passes."""
        return self.messages_forward + self.messages_backward

    @property
    def memory(self) -> int:
        """Returns the larger of both passes' memory."""
        return max(self.memory_forward, self.memory_backward)

    def __str__(self) -> str:
        how = self.how if isinstance(self.how, str) else " and ".join(self.how)
        if self.refused:
            return f"{how}: {self.refused}"
        return (
            f"{how}: sends {_size(self.bytes_forward)} + {_size(self.bytes_backward)} in {self.messages_forward} + "
            f"{self.messages_backward} messages (forward + backward), holds {_size(self.memory)} beyond q, k and v"
        )


@dataclass(frozen=True)
class _Shard:
    """A rank's part of a call: rows of Q and of K times batch, heads, head dims of K and V, bytes of an element."""

    rows: int
    keys: int
    heads: int
    kv_heads: int
    dim: int
    dim_v: int
    element: int

    @property
    def q(self) -> int:
        return self.rows * self.heads * self.dim

    @property
    def out(self) -> int:
        return self.rows * self.heads * self.dim_v

    @property
    def kv(self) -> int:
        return self.keys * self.kv_heads * (self.dim + self.dim_v)

    @property
    def kept(self) -> int:
        """Returns the bytes of the output, and of its rounding residual."""
        return self.out * self.element * (1 if self.element == _FP32 else 2)


def cost(
    q_shape: Sequence[int],
    k_shape: Sequence[int],
    dtype: Any,
    world: World,
    how: How,
    *,
    dim_v: int | None = None,
    backward: bool = True,
) -> Cost:
    """Returns what a way costs, per rank and layer.

    Args:
        q_shape: of one rank's SHARD of q, as the functions take it: (batch, rows, heads, dim), or (tokens, heads, dim).
        k_shape: of the same rank's shard of k.
        dtype: a torch.dtype, or its name.
        world: the number of ranks; of two groups a pair, the outer one first.
        how: "ring", "all_gather", "all_to_all"; of two groups ("ring", "all_to_all") or ("all_gather", "all_to_all").
        dim_v: the head dim of v, if it is not that of k.
        backward: whether there will be a backward pass.

    Heads that ``world`` does not divide are no error here: the result says so in ``refused``.
    """
    shard = _shard("cost", q_shape, k_shape, dtype, dim_v)
    _check_world("cost", world, how)
    ways = {"ring": _ring, "all_gather": _all_gather, "all_to_all": _all_to_all}
    if isinstance(world, int):
        return ways[str(how)](shard, world, backward)
    (over_keys, over_heads), outer = world, how[0]
    heads = _all_to_all(shard, over_heads, backward)
    if heads.refused:
        return Cost(how, world, refused=heads.refused)
    inner = _Shard(
        shard.rows * over_heads,
        shard.keys * over_heads,
        shard.heads // over_heads,
        math.lcm(shard.kv_heads, over_heads) // over_heads,
        shard.dim,
        shard.dim_v,
        shard.element,
    )
    keys = ways[outer](inner, over_keys, backward)
    return Cost(
        how,
        world,
        bytes_forward=heads.bytes_forward + keys.bytes_forward,
        bytes_backward=heads.bytes_backward + keys.bytes_backward,
        messages_forward=heads.messages_forward + keys.messages_forward,
        messages_backward=heads.messages_backward + keys.messages_backward,
        memory_forward=heads.memory_forward + keys.memory_forward,
        memory_backward=heads.memory_backward + keys.memory_backward,
    )


def choose(
    q_shape: Sequence[int],
    k_shape: Sequence[int],
    dtype: Any,
    world: int,
    *,
    dim_v: int | None = None,
    backward: bool = True,
    memory_limit: int | None = None,
    ways: Sequence[str] = WAYS,
) -> Cost:
    """Returns the cost of the way that fits best; how="auto" takes it, without a limit.

    Ways that these heads refuse, or need more than the limit, are left out. Of the others the one that sends the
    fewest bytes in both passes wins, then the one with fewer messages. If none is within the limit, the one that needs
    the least memory wins.

    Args:
        q_shape: of a shard, see ``cost``.
        k_shape: of a shard, see ``cost``.
        dtype: see ``cost``.
        world: the number of ranks.
        dim_v: see ``cost``.
        backward: see ``cost``.
        memory_limit: bytes that a way may need beyond q, k and v, None for any number. All ranks must give the same
            number, as they must choose alike: the least of what they have.
        ways: those to choose from; a feature may leave fewer.
    """
    for way in ways:
        if way not in WAYS:
            raise ValueError(f"choose: ways must be some of {', '.join(WAYS)}, got {way!r}")
    if memory_limit is not None and memory_limit < 0:
        raise ValueError(f"choose: memory_limit must not be negative, got {memory_limit}")
    costs = [cost(q_shape, k_shape, dtype, world, way, dim_v=dim_v, backward=backward) for way in WAYS if way in ways]
    possible = [each for each in costs if not each.refused]
    if not possible:
        why = "; ".join(str(each) for each in costs) or "ways is empty"
        raise ValueError(f"choose: no way is left ({why})")
    fits = [each for each in possible if memory_limit is None or each.memory <= memory_limit]
    if not fits:
        return min(possible, key=lambda each: (each.memory, each.bytes))
    return min(fits, key=lambda each: (each.bytes, each.messages))


def cost_table(
    q_shape: Sequence[int],
    k_shape: Sequence[int],
    dtype: Any,
    world: int,
    *,
    dim_v: int | None = None,
    backward: bool = True,
    memory_limit: int | None = None,
) -> str:
    """Returns a table of all ways as text, a line each; a star stands before the one that how="auto" takes.

    Args:
        q_shape: of a shard, see ``cost``.
        k_shape: of a shard, see ``cost``.
        dtype: see ``cost``.
        world: the number of ranks.
        dim_v: see ``cost``.
        backward: see ``cost``.
        memory_limit: see ``choose``.
    """
    call: dict[str, Any] = {"dim_v": dim_v, "backward": backward}
    chosen = choose(q_shape, k_shape, dtype, world, memory_limit=memory_limit, **call).how
    lines: list[tuple[str, ...]] = [("", "way", "forward", "backward", "messages", "memory forward", "both")]
    notes = []
    for way in WAYS:
        each = cost(q_shape, k_shape, dtype, world, way, **call)
        if each.refused:
            notes.append(str(each))
            continue
        messages = f"{each.messages_forward} + {each.messages_backward}"
        sizes = [_size(n) for n in (each.bytes_forward, each.bytes_backward, each.memory_forward, each.memory_backward)]
        lines.append(("*" if way == chosen else "", way, *sizes[:2], messages, *sizes[2:]))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join(text + notes)


def _ring(shard: _Shard, world: int, backward: bool) -> Cost:
    steps, kv = world - 1, shard.kv * shard.element
    arriving = min(steps, 2)
    wide = shard.out * _FP32
    # Beside the state: K and V that are read, and travel, and come. Backward: dQ and sums of dK and dV in fp32, of this
    # rank's keys, of a step, on their way there and back.
    forward = wide + max((arriving + 1) * kv * bool(steps), shard.kept // 2)
    sums = (2 + arriving if steps else 1) * shard.kv * _FP32
    return Cost(
        "ring",
        world,
        bytes_forward=steps * kv,
        bytes_backward=steps * (kv + shard.kv * _FP32) * backward,
        messages_forward=steps,
        messages_backward=2 * steps * backward,
        memory_forward=forward,
        memory_backward=max(forward, shard.kept + shard.q * _FP32 + sums + 2 * kv * bool(steps)) * backward,
    )


def _all_gather(shard: _Shard, world: int, backward: bool) -> Cost:
    others, once, kv = world - 1, int(world > 1), shard.kv * shard.element
    # K and V as they came, and in the order of the sequence, one after the other. Backward: sums of dK and dV for all
    # keys in fp32, in the order of ranks, as a message, and what came from others.
    forward = shard.out * _FP32 + max(5 * world * kv // 2 * once, shard.kept // 2)
    sums = (4 if once else 1) * world * shard.kv * _FP32
    return Cost(
        "all_gather",
        world,
        bytes_forward=others * kv,
        bytes_backward=others * (kv + shard.kv * _FP32) * backward,
        messages_forward=once,
        messages_backward=2 * once * backward,
        memory_forward=forward,
        memory_backward=max(forward, shard.kept + shard.q * _FP32 + sums) * backward,
    )


def _all_to_all(shard: _Shard, world: int, backward: bool) -> Cost:
    if refused := _not_by_heads(shard, world):
        return Cost("all_to_all", world, refused=refused)
    copied = shard.kv * math.lcm(shard.kv_heads, world) // shard.kv_heads
    qkv, out, wide = (shard.q + copied) * shard.element, shard.out * shard.element, shard.out * _FP32
    sent, once = (qkv + out) * (world - 1) // world, int(world > 1)
    # A message is four times there: dealt to ranks, in one piece, as it came, in the order of the sequence. Backward:
    # q, k, v and O are kept as exchanged; dQ, dK and dV are there in fp32, in their type, and as such messages.
    forward = wide + max(4 * qkv * once, qkv * once + 4 * out)
    sums = (
        shard.q * _FP32
        + copied * _FP32 * (1 if copied == shard.kv else 2)
        + copied * shard.element * (copied > shard.kv)
    )
    return Cost(
        "all_to_all",
        world,
        bytes_forward=sent,
        bytes_backward=sent * backward,
        messages_forward=2 * once,
        messages_backward=2 * once * backward,
        memory_forward=forward,
        memory_backward=max(forward, (6 if once else 1) * qkv + wide + out + sums) * backward,
    )


def _not_by_heads(shard: _Shard, world: int) -> str:
    """Returns why heads cannot be dealt to so many ranks, or ""."""
    if shard.heads % world == 0:
        return ""
    return f"the number of query heads must be a multiple of the number of ranks ({world}), got {shard.heads}"


def _shard(function: str, q_shape: Sequence[int], k_shape: Sequence[int], dtype: Any, dim_v: int | None) -> _Shard:
    """Checks shapes and dtype; returns the sizes of a shard."""
    q, k = tuple(map(int, q_shape)), tuple(map(int, k_shape))
    if len(q) not in (3, 4) or len(k) != len(q):
        raise ValueError(
            f"{function}: q_shape and k_shape must be (batch, rows, heads, dim), or (tokens, heads, dim) both, "
            f"got {q} and {k}"
        )
    if min(*q, *k) < 1:
        raise ValueError(f"{function}: q_shape and k_shape must be positive, got {q} and {k}")
    if q[:-3] != k[:-3] or q[-1] != k[-1]:
        raise ValueError(f"{function}: k_shape may differ from q_shape in its rows and heads only, got {q} and {k}")
    if q[-2] % k[-2]:
        raise ValueError(f"{function}: the heads of q ({q[-2]}) must be a multiple of those of k, got {k[-2]}")
    if dim_v is not None and dim_v < 1:
        raise ValueError(f"{function}: dim_v must be positive, got {dim_v}")
    name = str(dtype).removeprefix("torch.")
    name = _SHORT.get(name, name)
    if name not in BYTES:
        raise ValueError(f"{function}: dtype must be one of {', '.join(BYTES)}, got {dtype}")
    return _Shard(math.prod(q[:-2]), math.prod(k[:-2]), q[-2], k[-2], q[-1], dim_v or q[-1], BYTES[name])


def _check_world(function: str, world: World, how: How) -> None:
    if isinstance(how, str):
        if how not in WAYS:
            raise ValueError(f"{function}: how must be one of {', '.join(WAYS)}, or a pair of them, got {how!r}")
        if isinstance(world, bool) or not isinstance(world, int) or world < 1:
            raise ValueError(f"{function}: world must be a positive number of ranks, got {world!r}")
        return
    if how not in (("ring", "all_to_all"), ("all_gather", "all_to_all")):
        pairs = "('ring', 'all_to_all') or ('all_gather', 'all_to_all')"
        raise ValueError(f"{function}: how must be {pairs} for two groups, got {how!r}")
    if not isinstance(world, tuple) or len(world) != 2 or min(world) < 1:
        raise ValueError(f"{function}: world must be two positive numbers of ranks for two groups, got {world!r}")


def _size(value: int) -> str:
    """Formats bytes in the unit that fits."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor:
            return f"{value / factor:.3g} {unit}"
    return f"{value} B"
