"""Parts of an attention, as context parallel calls them: results of some queries and keys join those of others, in fp32.

The reference is float64 of the whole; queries are cut into two parts, keys into three, in any order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise, product
from typing import Any

import gradients
import numpy as np
import pytest
import torch
import xeflash
import xeflash.torch_ops
from arrays import ArraysOf
from cover import few
from memory import lay_out
from tolerance import torch_formula
from xeflash import _core
from xeflash.call.schema import BHSD, BSHD, THD
from xeflash.distributed.part import attention_part, attention_part_backward, delta_of
from xeflash.selftest.attention.drawn import Drawn, draw
from xeflash.selftest.attention.spec import Spec

BATCH, ROWS, KEYS, HEADS, HEADS_K = 2, 112, 131, 4, 2
Q_CUTS, K_CUTS = (0, 40, ROWS), (0, 57, 58, KEYS)
CASES: dict[str, dict[str, Any]] = {
    "full": {"window": "full-tl"},
    "causal": {"window": "causal-tl"},
    "window": {"window": "30,9-tl"},
    "ALiBi and sinks": {"window": "causal-tl", "variant": "alibi", "sinks": True},
    "softcap, ALiBi and sinks": {"window": "causal-tl", "variant": "softcap=4+alibi", "sinks": True},
    "dropout": {"window": "causal-tl", "variant": "dropout=0.3"},
    "score_mod": {"window": "70,0-tl", "variant": "slope"},
    "score_mod and dropout": {"window": "full-tl", "variant": "slope+dropout=0.2", "sinks": True},
    "far scores": {"window": "full-tl", "scale": 300.0},
}
LEARNED = ("alibi_slopes", "s_aux", "near")
DTYPES = ["fp32", "bf16", "fp16"]
DEFAULT = [("window", "bf16"), ("ALiBi and sinks", "fp32"), ("far scores", "bf16")]
GPU_TESTS = ("window-bf16", "visible")
Results = tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Arrays:
    """What is drawn for a case, and where it was put: q, k, v and dO of (B, S, H, D)."""

    drawn: Drawn
    put: dict[str, Any]

    @property
    def learned(self) -> list[str]:
        """Of what there are gradients besides those of q, k and v."""
        return [name for name in LEARNED if name in self.put]


def arrays(device: str, name: str, dtype: str, dim: int = 64, dim_v: int = 64, seed: int = 7, **more: Any) -> Arrays:
    spec = Spec(
        dtype, dim, dim_v, (HEADS, HEADS_K), ROWS, KEYS, grad=True, mean=1.0, **CASES[name] | more
    )  # a mean, which Delta has to cope with
    drawn = draw(spec, np.random.default_rng(seed))
    return Arrays(drawn, {name: x.to(device) for name, x in drawn.put(ArraysOf(spec)).items()})


def reference(x: Arrays) -> Results:
    """out (B, S, H, D), LSE (B, H, S), gradients by name: in float64, on the CPU."""
    with torch.device("cpu"):
        wide = gradients.tensors_of(x.drawn)[1]
        found = [torch_formula(*sequence[1:])[:2] for sequence in x.drawn.by_sequence(wide)]
        out, lse = (torch.cat(parts) for parts in zip(*found, strict=True))
        grads = gradients.gradients_of(x.drawn, wide)
    return out.transpose(1, 2), lse, {n: dx.reshape(x.put[n].shape) for n, dx in grads.items()}


def call_of(x: Arrays) -> dict[str, Any]:
    """The keywords of a part."""
    said = x.drawn.in_core(x.put)
    return {name: y for name, y in said.items() if name not in ("q", "k", "v", "function", "bottom_right")}


def by_parts(x: Arrays, layout: int = BSHD) -> Results:
    """The same by parts: (B, S, H, D), whatever the layout of the calls."""
    lie = (lambda y: y.transpose(1, 2)) if layout == BHSD else (lambda y: y)
    q, k, v, dout = (x.put[name] for name in ("q", "k", "v", "dout"))
    out = torch.full(dout.shape, torch.nan, device=q.device, dtype=torch.float32)
    lse = torch.full((BATCH, HEADS, ROWS), -torch.inf, device=q.device)
    call = call_of(x) | {"layout": layout}
    sinks = call.pop("s_aux", None)
    pieces = [(slice(*a), slice(*b)) for a in pairwise(Q_CUTS) for b in reversed([*pairwise(K_CUTS)])]

    def piece(rows: slice, keys: slice) -> dict[str, Any]:
        once = {"s_aux": sinks} if sinks is not None and keys.start == 0 else {}
        return call | {"q_start": rows.start, "k_start": keys.start, **once}

    for rows, keys in pieces:
        tensors = (lie(y) for y in (q[:, rows], k[:, keys], v[:, keys], out[:, rows]))
        attention_part(*tensors, lse[:, :, rows], **piece(rows, keys))

    sums = {name: torch.zeros(x.put[name].shape, device=q.device) for name in "qkv"}
    found: dict[str, torch.Tensor] = {}
    for rows, keys in pieces:
        more = piece(rows, keys)
        wanted = tuple({"near": "captures['near']"}.get(n, n) for n in x.learned if n != "s_aux" or n in more)
        delta = delta_of(lie(dout[:, rows]), lie(out[:, rows]), None, layout)
        tensors = (lie(y) for y in (dout[:, rows], q[:, rows], k[:, keys], v[:, keys]))
        to = (lie(y) for y in (sums["q"][:, rows], sums["k"][:, keys], sums["v"][:, keys]))
        captures = [("near", x.put["near"])] if "near" in x.put else []
        parts = attention_part_backward(*tensors, lse[:, :, rows], delta, *to, wanted=wanted, captures=captures, **more)
        for name, part in parts.items():
            name = {"captures['near']": "near"}.get(name, name)
            found[name] = found.get(name, 0) + part
    return out, lse, sums | found


def whole(x: Arrays) -> Results:
    """By one call of the public function."""
    spec = replace(x.drawn.spec, entry="attention", grad=False)
    leaves = {name: x.put[name].clone().requires_grad_() for name in ("q", "k", "v", *x.learned)}
    given = x.put | leaves | {name: leaves[name].transpose(1, 2) for name in "qkv"}
    out, lse = replace(x.drawn, spec=spec).call(given)
    out = out.transpose(1, 2)
    grads = torch.autograd.grad(out, list(leaves.values()), x.put["dout"])
    return out.detach(), lse.detach(), dict(zip(leaves, grads, strict=True))


def error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.cpu().double() - want).norm() / want.norm())


def largest_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.cpu().double() - want).abs().max())


def lost_by_joins(lse: torch.Tensor) -> float:
    """Each time that other keys join, an LSE may lose two units in its last place."""
    return (len(K_CUTS) - 2) * 2.0**-22 * float(lse.abs().max())


@pytest.mark.parametrize(
    ("name", "dtype"),
    [pytest.param(*x, marks=() if x in DEFAULT else pytest.mark.long) for x in product(CASES, DTYPES)],
    ids=str,
)
def test_parts_come_to_the_whole(device: str, name: str, dtype: str):
    """As exact as one call of all, and in 16 bits more, as nothing is rounded in between."""
    x = arrays(device, name, dtype)
    want, want_lse, want_grads = reference(x)
    once, once_lse, once_grads = whole(x)
    out, lse, grads = by_parts(x)
    far = 300 * 2.0**-16 if name == "far scores" else 0.0  # scores of thousands are known to so many bits
    assert error(out, want) <= 1.5 * error(once, want) + 2.0**-22 + far
    assert largest_error(lse, want_lse) <= 1.5 * largest_error(once_lse, want_lse) + lost_by_joins(want_lse)
    assert grads.keys() == want_grads.keys()
    assert all(got.dtype is torch.float32 for got in grads.values())
    for key in "qkv":
        assert error(grads[key], want_grads[key]) <= 1.5 * error(once_grads[key], want_grads[key]) + 2.0**-21 + far, key


DRAWS = 8


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(*x, marks=() if x in DEFAULT else pytest.mark.long)
        for x in product(CASES, DTYPES)
        if CASES[x[0]].keys() & {"sinks"} or "slope" in CASES[x[0]].get("variant", "")
    ],
    ids=str,
)
def test_parts_of_what_is_learned_come_to_the_whole(device: str, name: str, dtype: str):
    """As exact as one call of all, within what eight draws of four numbers tell: by chance alone, two root mean squares
    of so few errors differ by up to a factor of 2. The error of a row's LSE is that of its probabilities, too."""
    learned = arrays(device, name, dtype).learned
    ours, at_once = dict.fromkeys(learned, 0.0), dict.fromkeys(learned, 0.0)
    joins = 0.0
    for seed in range(DRAWS):
        x = arrays(device, name, dtype, seed=seed)
        _, want_lse, want = reference(x)
        once, grads = whole(x)[2], by_parts(x)[2]
        joins = max(joins, lost_by_joins(want_lse))
        for key in learned:
            ours[key] += error(grads[key], want[key]) ** 2 / DRAWS
            at_once[key] += error(once[key], want[key]) ** 2 / DRAWS
    for key in learned:
        assert ours[key] ** 0.5 <= 2 * at_once[key] ** 0.5 + joins, key


@pytest.mark.parametrize(
    "dims", [(72, 40), *(pytest.param(x, marks=pytest.mark.long) for x in [(128, 128), (256, 256), (40, 64)])], ids=str
)
@pytest.mark.parametrize("layout", [BSHD, BHSD])
def test_head_dims_and_layouts(device: str, layout: int, dims: tuple[int, int]):
    x = arrays(device, "causal", "bf16", *dims)
    want, _, want_grads = reference(x)
    out, _, grads = by_parts(x, layout)
    assert error(out, want) < 2.0**-9
    for key, got in grads.items():
        assert error(got, want_grads[key]) < 2.0**-8, key


@pytest.mark.parametrize("name", few(["dropout", "score_mod and dropout"], "dropout"))
def test_heads_count_from_the_first_one_of_all(device: str, name: str):
    """All-to-all gives a rank some heads: their numbers are drawn, and a snippet reads its captures, by all heads."""
    x = arrays(device, name, "fp32")
    want = reference(x)[0]
    outs = []
    for first in range(0, HEADS, 2):
        heads, keys = slice(first, first + 2), slice(first // 2, first // 2 + 1)
        given = {"function": "part", "bottom_right": False, **call_of(x)}
        given |= {"s_aux": given["s_aux"][heads]} if "s_aux" in given else {}
        given |= {"q": x.put["q"][:, :, heads], "k": x.put["k"][:, :, keys], "v": x.put["v"][:, :, keys]}
        outs.append(_core.forward(first_head=first, all_heads=HEADS, **given)[0])
    assert error(torch.cat(outs, 2), want) < 2.0**-20
    alone = _core.forward(**given)[0]
    assert error(alone, outs[1].cpu().double()) > 0.01  # or the numbers say nothing


def test_packed_documents_have_positions_of_their_own(device: str):
    """Two shards of three documents, cut in their middle: starts of documents on a rank are tensors."""
    lengths, heads, cut = [30, 70, 28], 2, 64
    make = torch.Generator("cpu").manual_seed(1)
    q, k, v, dout = (torch.randn(sum(lengths), heads, 64, generator=make, device="cpu").to(device) for _ in range(4))
    slopes = torch.tensor([0.5, 0.1], device=device)
    int32 = functools.partial(torch.tensor, dtype=torch.int32, device=device)
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    starts = [0, *ends[:-1]]
    whole_cu = int32([0, *ends])

    leaves = [y.clone().requires_grad_() for y in (q, k, v)]
    want = xeflash.flash_attn_varlen_func(
        *leaves, whole_cu, whole_cu, max(lengths), max(lengths), window_size=(40, 0), alibi_slopes=slopes
    )
    want_grads = torch.autograd.grad(want, leaves, dout)

    out, lse = torch.full_like(q, torch.nan), torch.full((heads, len(q)), -torch.inf, device=device)
    sums = [torch.zeros_like(y) for y in (q, k, v)]
    shards = (slice(0, cut), slice(cut, len(q)))

    def side(shard: slice, which: str) -> dict[str, Any]:
        local = [min(max(e, shard.start), shard.stop) - shard.start for e in (0, *ends)]
        first = int32([max(shard.start - s, 0) for s in starts])
        return {f"cu_seqlens_{which}": int32(local), f"max_seqlen_{which}": cut + 1, f"{which}_start": first}

    call = {"layout": THD, "window_left": 40, "window_right": 0, "alibi_slopes": slopes}
    both = [(r, s) for r in shards for s in shards if s.start <= r.start]
    for r, s in both:
        attention_part(q[r], k[s], v[s], out[r], lse[:, r], **call, **side(r, "q"), **side(s, "k"))
    for r, s in both:
        delta = delta_of(dout[r], out[r], None, THD)
        to = (sums[0][r], sums[1][s], sums[2][s])
        attention_part_backward(
            dout[r], q[r], k[s], v[s], lse[:, r], delta, *to, **call, **side(r, "q"), **side(s, "k")
        )
    assert error(out, want.detach().cpu().double()) < 2.0**-20
    for got, grad in zip(sums, want_grads, strict=True):
        assert error(got, grad.cpu().double()) < 2.0**-19


def qkv_of(device: str) -> list[torch.Tensor]:
    put = arrays(device, "full", "bf16").put
    return [put[name] for name in "qkv"]


@pytest.mark.parametrize("rows", [1, 3, 17])
def test_few_queries_of_heads_that_share_keys(device: str, rows: int):
    """Where a tile has the rows of several heads, or decoding would split keys."""
    q, k, v = (x[:, :n] for x, n in zip(qkv_of(device), (rows, KEYS, KEYS), strict=True))
    want, want_lse = xeflash.attention(
        *(y.transpose(1, 2) for y in (q, k, v)), enable_gqa=True, return_lse=True, is_causal=True, bottom_right=True
    )
    out, lse = torch.full(q.shape, torch.nan, device=device), torch.full(want_lse.shape, -torch.inf, device=device)
    call: dict[str, Any] = {"layout": BSHD, "causal": True, "q_start": KEYS - rows}
    for keys in (slice(*ends) for ends in pairwise(K_CUTS)):
        attention_part(q, k[:, keys], v[:, keys], out, lse, k_start=keys.start, **call)
    assert error(out, want.transpose(1, 2).cpu().double()) < 2.0**-8
    assert float((lse - want_lse).abs().max()) < 2.0**-9


def test_a_part_without_visible_keys_changes_no_bit(device: str):
    q, k, v = qkv_of(device)
    out, lse = (
        torch.full(q.shape, torch.nan, device=device),
        torch.full((BATCH, HEADS, ROWS), -torch.inf, device=device),
    )
    call: dict[str, Any] = {"layout": BSHD, "causal": True}
    attention_part(q, k, v, out, lse, k_start=1000, **call)
    assert (lse == -torch.inf).all() and not out.any()  # nothing was there, and nothing came
    attention_part(q, k, v, out, lse, **call)
    before = out.clone(), lse.clone()
    attention_part(q, k, v, out, lse, k_start=1000, **call)
    assert torch.equal(out, before[0]) and torch.equal(lse, before[1])


def flush(x: torch.Tensor) -> torch.Tensor:
    """A copy whose last byte lies before a page that nobody may touch."""
    return lay_out(x, "packed")


@pytest.mark.parametrize("dims", few([(72, 40), (64, 64)], (72, 40)))
@pytest.mark.parametrize("heads_k", few([1, 4], 4))  # fewer and more than make one kernel of the backward pass
def test_nothing_beyond_an_array_is_touched(heads_k: int, dims: tuple[int, int]):
    """On the CPU, where touching it ends the process."""
    (dim, dim_v), rows, keys = dims, 37, 29
    shapes = [(1, rows, 4, dim), (1, keys, heads_k, dim), (1, keys, heads_k, dim_v), (1, rows, 4, dim_v)]
    q, k, v, dout = (flush(torch.randn(shape).bfloat16()) for shape in shapes)
    out, lse = flush(torch.full(dout.shape, torch.nan)), flush(torch.full((1, 4, rows), -torch.inf))
    attention_part(q, k, v, out, lse, layout=BSHD)
    delta = flush(delta_of(dout, out, None, BSHD))
    sums = [flush(torch.zeros(x.shape)) for x in (q, k, v)]
    attention_part_backward(dout, q, k, v, lse, delta, *sums, layout=BSHD)
    assert all(x.isfinite().all() for x in (out, lse, *sums))


def test_the_same_bits_twice(device: str):
    x = arrays(device, "causal", "bf16")
    first, second = (by_parts(x) for _ in range(2))
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
    assert all(torch.equal(first[2][name], second[2][name]) for name in first[2])


def refusals() -> dict[str, tuple[Callable[[], Any], type[Exception], str]]:
    """What must be refused before anything is written."""
    lse = torch.zeros(BATCH, HEADS, ROWS)
    q, k, v = qkv_of("cpu")
    given: dict[str, Any] = {"function": "f", "q": q, "k": k, "v": v}
    sums = torch.zeros(q.shape)

    def forward(**more: Any) -> Callable[[], Any]:
        return lambda: _core.forward(**given | {"bottom_right": False} | more)

    def backward(**more: Any) -> Callable[[], Any]:
        own = {"dout": q, "lse": lse, "delta": lse, "bottom_right": False, "wanted": ("q", "k", "v")}
        return lambda: _core.backward(**given | own | more)

    dropped = {"dropout_p": 0.5, "seed": 1}
    return {
        "start": (forward(q_start=1, bottom_right=True), ValueError, "q_start must come with bottom_right=False"),
        "negative": (forward(k_start=-1), ValueError, r"k_start must be 0 to \d+, .* got -1"),
        "octet": (forward(q_start=4, **dropped), NotImplementedError, "q_start must be a multiple of 8 with dropout"),
        "starts": (
            forward(k_start=torch.zeros(BATCH, dtype=torch.int32), **dropped), NotImplementedError,
            "k_start must be one number with dropout",
        ),
        "count": (forward(q_start=torch.zeros(5, dtype=torch.int32)), ValueError, "q_start must have 2 entries, got 5"),
        "heads": (forward(first_head=1), ValueError, "first_head must be 0 to all_heads - q.heads .0., got 1"),
        "no out": (forward(other_lse=lse), ValueError, "out must be given with other_lse, got None"),
        "dtype": (
            forward(other_lse=lse, out=torch.zeros(q.shape, dtype=torch.bfloat16)), TypeError,
            "out must be float32 with other_lse",
        ),
        "view": (
            forward(other_lse=torch.zeros(BATCH, HEADS, 2 * ROWS)[:, :, ::2], out=sums), ValueError,
            "other_lse must be contiguous",
        ),
        "delta": (backward(dlse=lse), ValueError, "dlse must be None with delta"),
        "sum": (backward(dq=torch.zeros(3)), ValueError, "dq must have the shape of q"),
        "one sum": (backward(dq=torch.zeros(q.shape)), ValueError, "dk must be given where others are added to"),
        "unwanted": (backward(dq=torch.zeros(q.shape), wanted=()), ValueError, "dq must be None unless wanted has 'q'"),
    }  # fmt: skip


@pytest.mark.parametrize("name", refusals())
def test_refusals(name: str):
    call, kind, text = refusals()[name]
    with pytest.raises(kind, match=f"f: {text}"):
        call()
