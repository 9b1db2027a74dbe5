"""Functions that people give to torch's flex_attention: changes of scores and masks, for any sizes, types and devices.

An example makes a (score_mod, mask_mod), either of which may be None. What it captures it asks of `Captures`, which has
the same numbers in each type; those that learn can so be judged by autograd in float64.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import and_masks, or_masks

Mod = Callable[..., Tensor]
Mods = tuple[Mod | None, Mod | None]


class Sizes(NamedTuple):
    batch: int = 2
    heads: int = 4
    heads_k: int = 2
    rows: int = 37
    keys: int = 53
    dim: int = 64

    @property
    def longest(self) -> int:
        return max(self.rows, self.keys)


@dataclass
class Captures:
    """Tensors by name; `grad`: those that learn require grad."""

    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    grad: bool = False
    learned: dict[str, Tensor] = field(default_factory=dict)

    def learn(self, name: str, *shape: int, size: float = 1.0) -> Tensor:
        made = self.fixed(size * torch.randn(shape, generator=numbers_of(name), device="cpu", dtype=torch.float32))
        self.learned[name] = made.requires_grad_(self.grad)
        return made

    def fixed(self, x: Tensor) -> Tensor:
        return x.to(self.device, self.dtype if x.is_floating_point() else x.dtype, copy=True)

    def ints(self, name: str, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        drawn = torch.randint(low, high, shape, generator=numbers_of(name), device="cpu", dtype=dtype)
        return drawn.to(self.device)


def numbers_of(name: str) -> torch.Generator:
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


Example = Callable[[Sizes, Captures], Mods]
EXAMPLES: dict[str, Example] = {}


def example(make: Example) -> Example:
    EXAMPLES[make.__name__.strip("_").replace("_", "-")] = make
    return make


# ---- masks of positions -------------------------------------------------------------------------


def is_causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q >= k


def within(width: int) -> Mod:
    return lambda b, h, q, k: (q - k).abs() <= width


@example
def causal(z: Sizes, of: Captures) -> Mods:
    return None, is_causal


@example
def sliding_window(z: Sizes, of: Captures, width: int = 9) -> Mods:
    def mask(b, h, q, k):
        return (q >= k) & (q - k < width)

    return None, mask


@example
def bottom_right(z: Sizes, of: Captures) -> Mods:
    more = z.keys - z.rows
    return None, lambda b, h, q, k: q + more >= k


@example
def neighbourhood(z: Sizes, of: Captures, width: int = 7, reach: int = 1) -> Mods:
    """Of pixels."""

    def mask(b, h, q, k):
        is_near = ((q // width) - (k // width)).abs() <= reach
        return is_near & (((q % width) - (k % width)).abs() <= reach)

    return None, mask


def dilated(step: int) -> Example:
    def make(z: Sizes, of: Captures) -> Mods:
        return None, lambda b, h, q, k: ((q - k) % step == 0) & ((q - k).abs() < 5 * step)

    return make


EXAMPLES |= {f"dilated-{step}": dilated(step) for step in (3, 4)}


@example
def streaming(z: Sizes, of: Captures, first: int = 4, width: int = 8) -> Mods:
    """The first keys are seen by all."""
    return None, lambda b, h, q, k: (q >= k) & ((k < first) | (q - k <= width))


@example
def masks_joined(z: Sizes, of: Captures) -> Mods:
    return None, or_masks(and_masks(is_causal, within(6)), lambda b, h, q, k: k == 0, lambda b, h, q, k: h == 1)


@example
def heads_of_two_kinds(z: Sizes, of: Captures) -> Mods:
    return None, lambda b, h, q, k: torch.where((h + b) % 2 == 0, q >= k, q <= k)


# ---- masks of what is captured ------------------------------------------------------------------


@example
def prefix(z: Sizes, of: Captures) -> Mods:
    seen_by_all = of.ints("prefix", 1, z.keys, z.batch)
    return None, lambda b, h, q, k: (k <= q) | (k < seen_by_all[b])


@example
def documents(z: Sizes, of: Captures) -> Mods:
    document = of.ints("document", 0, 4, z.batch, z.longest, dtype=torch.int64).sort(-1).values
    return None, lambda b, h, q, k: (document[b, q] == document[b, k]) & (q >= k)


@example
def jagged_causal(z: Sizes, of: Captures) -> Mods:
    """Sequences one after the other; what a row sees is said by places within its sequence."""
    starts = of.fixed(torch.tensor([0, 11, 30, 36]))
    sequence = of.fixed(torch.bucketize(torch.arange(z.longest), torch.tensor([11, 30, 36]), right=True))

    def mask(b, h, q, k):
        place_q, place_k = q - starts[sequence[q]], k - starts[sequence[k]]
        return (sequence[q] == sequence[k]) & (place_q >= place_k)

    return None, mask


@example
def transfusion(z: Sizes, of: Captures) -> Mods:
    """Text is causal, and pixels of an image see each other."""
    spans = of.fixed(torch.tensor([[[3, 9], [20, 12]], [[0, 5], [31, 6]]], dtype=torch.int32)[: z.batch])

    def mask(b, h, q, k):
        seen = q >= k
        for image in range(2):
            start, length = spans[b, image, 0], spans[b, image, 1]
            seen = seen | ((q >= start) & (q < start + length) & (k >= start) & (k < start + length))
        return seen

    return None, mask


@example
def bigbird(z: Sizes, of: Captures, block: int = 8) -> Mods:
    """Blocks at random, those nearby, and the first ones."""
    chosen = of.ints("chosen", 0, 4, -(-z.rows // block), -(-z.keys // block)) == 0

    def mask(b, h, q, k):
        row, column = q // block, k // block
        return chosen[row, column] | ((row - column).abs() <= 1) | (column == 0) | (row == 0)

    return None, mask


@example
def window_of_each_head(z: Sizes, of: Captures) -> Mods:
    widths = of.fixed(torch.tensor([1, 4, 16, 1000], dtype=torch.int32)[: z.heads])
    return None, lambda b, h, q, k: (q - k).abs() <= widths[h]


@example
def no_limit(z: Sizes, of: Captures) -> Mods:
    """A window that is as wide as its type can say."""
    widths = of.fixed(torch.tensor([3, 2**62, 7, 2**62])[: z.heads])
    return None, lambda b, h, q, k: (q >= k) & (q - k < widths[h])


@example
def lengths(z: Sizes, of: Captures) -> Mods:
    """Keys behind a sequence's end are padding; one sequence has none."""
    used = of.fixed(torch.tensor([z.keys - 6, 0])[: z.batch])
    return None, lambda b, h, q, k: k < used[b]


@example
def mask_in_memory(z: Sizes, of: Captures) -> Mods:
    seen = of.ints("seen", 0, 3, z.batch, 1, z.rows, z.keys) > 0
    return None, lambda b, h, q, k: seen[b, 0, q, k]


# ---- changes of scores by positions -------------------------------------------------------------


@example
def alibi(z: Sizes, of: Captures) -> Mods:
    slope = of.learn("slope", z.heads)
    return lambda s, b, h, q, k: s + slope[h] * (k - q), None


@example
def alibi_of_the_heads_number(z: Sizes, of: Captures) -> Mods:
    return lambda s, b, h, q, k: s - torch.exp2(-(h + 1) * 8.0 / z.heads) * (q - k).abs(), None


@example
def relative(z: Sizes, of: Captures) -> Mods:
    return lambda s, b, h, q, k: s + (q - k) / 8, None


@example
def causal_by_scores(z: Sizes, of: Captures) -> Mods:
    return lambda s, b, h, q, k: torch.where(q >= k, s, -float("inf")), None


@example
def waves(z: Sizes, of: Captures) -> Mods:
    """Sines and cosines, of one side each."""
    rate = of.learn("rate", z.heads, size=0.1)
    return lambda s, b, h, q, k: s + torch.sin(q * rate[h]) * torch.cos(k * 0.37), None


@example
def wave_of_the_distance(z: Sizes, of: Captures) -> Mods:
    return lambda s, b, h, q, k: s + torch.cos((q - k) * 0.25), None


@example
def remainders_and_powers(z: Sizes, of: Captures) -> Mods:
    def change(s, b, h, q, k):
        return s * 2.0 ** (q % 3) + ((k % 3) ** 2) * 0.1 + 0.25 * s**2 - ((q - k) % 3) / 4 + ((k - q) // 5) * 0.01

    return change, None


@example
def quotients(z: Sizes, of: Captures) -> Mods:
    """Ints divided give floats; floats are rounded down and towards zero."""

    def change(s, b, h, q, k):
        near = (
            torch.floor((q - k) / 3.71) + ((q - k) / 2.31).to(torch.int32) + torch.div(q - k, 3, rounding_mode="trunc")
        )
        return s * (q + 1) / (k + 1) + near * 0.05

    return change, None


@example
def bools_as_numbers(z: Sizes, of: Captures) -> Mods:
    def change(s, b, h, q, k):
        return s + (q > k) * 0.5 + ((q > k) + (k > 3)) * 1.5 - (~((q == k) | (h == 0)) ^ (b == 1)) * s

    return change, None


@example
def choices(z: Sizes, of: Captures) -> Mods:
    def change(s, b, h, q, k):
        s = torch.where(q > k, s * 2, s - 1).clamp(-3.5, 4.0)
        s = torch.clamp(s, max=3) + torch.minimum(q, k) * 0.01 + torch.maximum(s, s * 0.5)
        return s.masked_fill((q - k) % 5 == 4, -float("inf"))

    return change, None


# ---- changes of scores by themselves ------------------------------------------------------------


@example
def softcap(z: Sizes, of: Captures, cap: float = 1.5) -> Mods:
    def change(s, b, h, q, k):
        return cap * torch.tanh(s / cap)

    return change, None


def by_itself(change: Callable[[Tensor], Tensor]) -> Example:
    return lambda z, of: (lambda s, b, h, q, k: change(s), None)


EXAMPLES |= {
    "silu": by_itself(nn.functional.silu),
    "sigmoid": by_itself(lambda s: 3 * torch.sigmoid(s)),
    "sine": by_itself(lambda s: 2 * torch.sin(1.7 * s)),
    "roots-and-logarithms": by_itself(
        lambda s: (s.abs() + 1).sqrt() + torch.log(s.exp() + 1) - (s.square() + 1).rsqrt()
    ),
}


# ---- changes of scores by what is captured ------------------------------------------------------


@example
def table_by_distance(z: Sizes, of: Captures) -> Mods:
    table = of.learn("table", z.heads, z.rows + z.keys)
    return lambda s, b, h, q, k: s + table[h, q - k + z.keys - 1], None


@example
def buckets(z: Sizes, of: Captures, count: int = 16, furthest: int = 45) -> Mods:
    """T5's: half of a direction's buckets have a distance each, the others reach logarithmically further."""
    table, half, near = of.learn("buckets", count, z.heads), count // 2, count // 4

    def change(s, b, h, q, k):
        distance = (k - q).abs()
        far = torch.log(distance.clamp(min=1) / near) / math.log(furthest / near) * (half - near)
        far = (near + far.floor().to(torch.int64)).clamp(max=half - 1)
        bucket = torch.where(distance < near, distance, far) + torch.where(k > q, half, 0)
        return s + table[bucket, h]

    return change, None


@example
def bias(z: Sizes, of: Captures) -> Mods:
    bias = of.learn("bias", z.rows, z.keys)
    return lambda s, b, h, q, k: s + bias[q, k], None


@example
def bias_of_each_head(z: Sizes, of: Captures) -> Mods:
    bias = of.learn("bias-of-heads", z.heads, z.rows, z.keys)
    return lambda s, b, h, q, k: s * 0.5 + bias[h, q, k], None


@example
def index_after_index(z: Sizes, of: Captures) -> Mods:
    bias = of.learn("index-after-index", z.batch, z.heads, 1, z.rows)
    return lambda s, b, h, q, k: s + bias[b][h][0, q], None


@example
def from_the_end(z: Sizes, of: Captures) -> Mods:
    weights, last = of.learn("from-the-end", 60), of.learn("last", z.heads, 5)
    return lambda s, b, h, q, k: s + weights[k - q - 1] + last[h, -1] + last[h, -2 - h], None


@example
def a_number(z: Sizes, of: Captures) -> Mods:
    """Of a tensor without dimensions."""
    factor, more = of.learn("factor"), of.fixed(torch.tensor(3, dtype=torch.int32))
    return lambda s, b, h, q, k: s * factor + (k % more) * 0.1, None


@example
def five_arrays(z: Sizes, of: Captures) -> Mods:
    row, key, head, batch = (of.learn(f"five-{n}", n) for n in (z.rows, z.keys, z.heads, z.batch))
    kind = of.ints("kind", 0, 2, z.keys)

    def change(s, b, h, q, k):
        return s * head[h] + row[q] * key[k] - batch[b] * kind[k]

    return change, None


@example
def eight_arrays(z: Sizes, of: Captures) -> Mods:
    a = [of.learn(f"eight-{i}", z.heads, z.longest, size=0.5) for i in range(8)]

    def change(s, b, h, q, k):
        return s * a[0][h, q] + a[1][h, k] * a[2][h, q] - a[3][h, k] + a[4][h, q] * a[5][h, k] + a[6][h, q] * a[7][h, k]

    return change, None


@example
def distance_of_points(z: Sizes, of: Captures) -> Mods:
    points = of.learn("points", z.longest, 2)
    return lambda s, b, h, q, k: s - (points[q] - points[k]).pow(2).sum(-1), None


@example
def half_precision(z: Sizes, of: Captures) -> Mods:
    """Numbers of 16 bits."""
    rows = of.fixed(torch.randn(z.rows, generator=numbers_of("rows"), device="cpu")).to(torch.bfloat16)
    keys = of.fixed(torch.randn(z.keys, generator=numbers_of("keys"), device="cpu")).to(torch.float16)
    return lambda s, b, h, q, k: s + rows[q].float() * keys[k].float(), None


@example
def strides(z: Sizes, of: Captures) -> Mods:
    """Of a view."""
    bias = of.learn("strides", 2 * z.keys, z.rows)
    view = bias.t()[:, ::2]
    return lambda s, b, h, q, k: s + view[q, k] + bias[0, q], None


# ---- both, and other callables ------------------------------------------------------------------


@example
def score_and_mask(z: Sizes, of: Captures) -> Mods:
    slope = of.learn("score-and-mask", z.heads)
    kept = of.ints("kept", 0, 5, z.batch, z.keys) > 0

    def mask(b, h, q, k):
        return kept[b, k] & (q + 20 >= k)

    return lambda s, b, h, q, k: s + slope[h] * (k - q) * 0.1, mask


class Bias(nn.Module):
    def __init__(self, table: nn.Parameter, scale: float) -> None:
        super().__init__()
        self.table, self.scale = table, scale

    def forward(self, s, b, h, q, k):
        return s + self.table[h, q] * self.scale

    def change(self, s, b, h, q, k):
        return self.forward(s, b, h, q, k) - self.table[h, k]


def bias_module(z: Sizes, of: Captures, name: str) -> Bias:
    table = of.learned[name] = nn.Parameter(of.learn(name, z.heads, z.longest).detach(), requires_grad=of.grad)
    return Bias(table, 0.5)


@example
def a_module(z: Sizes, of: Captures) -> Mods:
    return bias_module(z, of, "module"), None


@example
def a_method(z: Sizes, of: Captures) -> Mods:
    return bias_module(z, of, "method").change, None


@dataclass
class Window:
    width: int

    def __call__(self, b, h, q, k):
        return (q - k).abs() <= self.width


@example
def an_object(z: Sizes, of: Captures) -> Mods:
    return None, Window(5)


@example
def a_partial(z: Sizes, of: Captures) -> Mods:
    def change(table, s, b, h, q, k, *, factor):
        return s * factor + table[k]

    return functools.partial(change, of.learn("partial", z.keys), factor=0.75), None


@example
def defaults(z: Sizes, of: Captures) -> Mods:
    slope = of.learn("defaults", z.heads)

    def change(s, b, h, q, k, slope=slope, factor=0.1):
        return s + slope[h] * (q - k) * factor

    return change, None


@example
def nested(z: Sizes, of: Captures) -> Mods:
    """Functions that call functions."""
    weights = of.learn("nested", z.heads)

    def smoothed(x: Any) -> Any:
        return x / (1 + abs(x))

    def change(s, b, h, q, k):
        return smoothed(s) * 4 + smoothed((q - k) * weights[h])

    return change, None
