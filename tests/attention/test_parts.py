"""Parts of an attention, as context parallel calls them: results of some queries and keys join those of others, in fp32.

The reference is float64 of the whole; queries are cut into two parts, keys into three, in any order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import pytest
import torch
import xeflash
import xeflash.torch_ops
from cover import few
from fuzz.memory import guarded
from xeflash import _core
from xeflash.call.schema import BHSD, BSHD, THD
from xeflash.call.values import snippet
from xeflash.distributed.part import attention_part, attention_part_backward, delta_of
from xeflash.selftest.reference import dropout_scale

BATCH, ROWS, KEYS, HEADS, HEADS_K = 2, 112, 131, 4, 2
Q_CUTS, K_CUTS = (0, 40, ROWS), (0, 57, 58, KEYS)
RNG = (1234567890123, 17)
SNIPPET = "s + near[h] * (q_idx - k_idx) * 0.01f"


@dataclass(frozen=True)
class Case:
    """What is done to scores and probabilities."""

    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    alibi: bool = False
    sinks: bool = False
    dropout: float = 0.0
    score_mod: bool = False
    scale: float | None = None

    @property
    def learned(self) -> tuple[str, ...]:
        """Of what there are gradients besides those of q, k and v."""
        given = {"alibi_slopes": self.alibi, "s_aux": self.sinks, "captures['near']": self.score_mod}
        return tuple(name for name, there in given.items() if there)


CASES = {
    "full": Case(),
    "causal": Case(causal=True),
    "window": Case(window=(30, 9)),
    "ALiBi and sinks": Case(causal=True, alibi=True, sinks=True),
    "softcap, ALiBi and sinks": Case(causal=True, softcap=4.0, alibi=True, sinks=True),
    "dropout": Case(causal=True, dropout=0.3),
    "score_mod": Case(score_mod=True, window=(70, 0)),
    "score_mod and dropout": Case(score_mod=True, dropout=0.2, sinks=True),
    "far scores": Case(scale=300.0),
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
DEFAULT = [
    ("window", torch.bfloat16),
    ("ALiBi and sinks", torch.float32),
    ("far scores", torch.bfloat16),
]
GPU_TESTS = ("window-torch.bfloat16", "visible")


@dataclass(frozen=True)
class Arrays:
    """(B, S, H, D) of q, k, v, dO; values of each head."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor
    slopes: torch.Tensor
    sinks: torch.Tensor
    near: torch.Tensor


def arrays(device: str, dtype: torch.dtype, dim: int = 64, dim_v: int = 64, seed: int = 7) -> Arrays:
    normal = functools.partial(torch.randn, generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
    big = [
        normal(BATCH, ROWS, HEADS, dim),
        normal(BATCH, KEYS, HEADS_K, dim),
        normal(BATCH, KEYS, HEADS_K, dim_v) + 1,  # a mean, which Delta has to cope with
        normal(BATCH, ROWS, HEADS, dim_v),
    ]
    small = [2.0 ** -torch.arange(1, HEADS + 1, device="cpu"), normal(HEADS), normal(HEADS)]
    return Arrays(*(x.to(dtype).to(device) for x in big), *(x.to(device) for x in small))


def reference(x: Arrays, case: Case) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """out (B, S, H, D), LSE (B, H, S), gradients by name: in float64, on the CPU."""
    leaves = {
        "q": x.q, "k": x.k, "v": x.v, "alibi_slopes": x.slopes, "s_aux": x.sinks, "captures['near']": x.near,
    }  # fmt: skip
    leaves = {name: y.cpu().double().requires_grad_() for name, y in leaves.items()}
    q, k, v, slopes, sinks, near = leaves.values()
    k, v = (y.repeat_interleave(HEADS // HEADS_K, 2) for y in (k, v))
    s = torch.einsum("bqhd,bkhd->bhqk", q, k) * (q.shape[-1] ** -0.5 if case.scale is None else case.scale)
    ahead = torch.arange(KEYS, device="cpu") - torch.arange(ROWS, device="cpu")[:, None]
    if case.softcap:
        s = case.softcap * torch.tanh(s / case.softcap)
    if case.alibi:
        s = s - slopes[:, None, None] * ahead.abs()
    if case.score_mod:
        s = s - near[:, None, None] * ahead * 0.01
    left, right = case.window[0], 0 if case.causal else case.window[1]
    hidden = ((ahead > right) if right >= 0 else torch.zeros_like(ahead).bool()) | ((ahead < -left) & (left >= 0))
    s = s.masked_fill(hidden, -torch.inf)
    if case.sinks:
        s = torch.cat([s, sinks[:, None, None].expand(BATCH, -1, ROWS, 1)], -1)
    p = s.softmax(-1)[..., :KEYS]
    if case.dropout:
        p = p * torch.from_numpy(dropout_scale((BATCH, HEADS, ROWS, KEYS), case.dropout, RNG))
    out = torch.einsum("bhqk,bkhd->bqhd", p, v)
    names = ("q", "k", "v", *case.learned)
    grads = torch.autograd.grad((out * x.dout.cpu().double()).sum(), [leaves[name] for name in names])
    return out.detach(), s.logsumexp(-1).detach(), dict(zip(names, grads, strict=True))


def call_of(x: Arrays, case: Case, heads: slice = slice(None)) -> dict[str, Any]:
    """The keywords of a part of so many heads; the snippet has the capture of all."""
    call: dict[str, Any] = {"layout": BSHD, "causal": case.causal, "softcap": case.softcap, "softmax_scale": case.scale}
    call |= {"window_left": case.window[0], "window_right": case.window[1]}
    if case.alibi:
        call["alibi_slopes"] = x.slopes[heads]
    if case.dropout:
        call |= {"dropout_p": case.dropout, "seed": RNG[0], "offset": RNG[1]}
    if case.score_mod:
        call["score_mod"] = snippet(_core, "part", SNIPPET, {"near": x.near})
    return call


def by_parts(x: Arrays, case: Case, layout: int = BSHD) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """The same by parts: (B, S, H, D), whatever the layout of the calls."""
    lie = (lambda y: y.transpose(1, 2)) if layout == BHSD else (lambda y: y)
    device = x.q.device
    out = torch.full((BATCH, ROWS, HEADS, x.v.shape[-1]), torch.nan, device=device)
    lse = torch.full((BATCH, HEADS, ROWS), -torch.inf, device=device)
    call = call_of(x, case) | {"layout": layout}
    pieces = [(slice(*a), slice(*b)) for a in pairwise(Q_CUTS) for b in reversed([*pairwise(K_CUTS)])]
    with_sinks = {"s_aux": x.sinks} if case.sinks else {}
    for rows, keys in pieces:
        once = with_sinks if keys.start == 0 else {}
        more = {"q_start": rows.start, "k_start": keys.start, **once}
        tensors = (lie(y) for y in (x.q[:, rows], x.k[:, keys], x.v[:, keys], out[:, rows]))
        attention_part(*tensors, lse[:, :, rows], **call, **more)

    sums = {name: torch.zeros(y.shape, device=device) for name, y in (("q", x.q), ("k", x.k), ("v", x.v))}
    found: dict[str, torch.Tensor] = {}
    for rows, keys in pieces:
        once = with_sinks if keys.start == 0 else {}
        wanted = tuple(name for name in case.learned if name != "s_aux" or once)
        delta = delta_of(lie(x.dout[:, rows]), lie(out[:, rows]), None, layout)
        tensors = (lie(y) for y in (x.dout[:, rows], x.q[:, rows], x.k[:, keys], x.v[:, keys]))
        to = (lie(y) for y in (sums["q"][:, rows], sums["k"][:, keys], sums["v"][:, keys]))
        more = {"q_start": rows.start, "k_start": keys.start, **once}
        parts = attention_part_backward(
            *tensors, lse[:, :, rows], delta, *to, wanted=wanted, captures=[("near", x.near)], **call, **more
        )
        for name, part in parts.items():
            found[name] = found.get(name, 0) + part
    return out, lse, sums | found


def whole(x: Arrays, case: Case) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """By one call of the public function."""
    tensors = {"q": x.q, "k": x.k, "v": x.v, "alibi_slopes": x.slopes, "s_aux": x.sinks, "captures['near']": x.near}
    leaves = {name: tensors[name].clone().requires_grad_() for name in ("q", "k", "v", *case.learned)}
    near = leaves.get("captures['near']")
    out, lse = xeflash.attention(
        *(leaves[name].transpose(1, 2) for name in "qkv"), None, case.dropout, case.causal, case.scale, True,
        window_size=case.window, softcap=case.softcap, alibi_slopes=leaves.get("alibi_slopes"),
        sinks=leaves.get("s_aux"), score_mod=SNIPPET if case.score_mod else None,
        captures={"near": near} if case.score_mod else None, rng=RNG if case.dropout else None,
        return_lse=True,
    )  # fmt: skip
    out = out.transpose(1, 2)
    grads = torch.autograd.grad(out, list(leaves.values()), x.dout)
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
def test_parts_come_to_the_whole(device: str, name: str, dtype: torch.dtype):
    """As exact as one call of all, and in 16 bits more, as nothing is rounded in between."""
    case, x = CASES[name], arrays(device, dtype)
    want, want_lse, want_grads = reference(x, case)
    once, once_lse, once_grads = whole(x, case)
    out, lse, grads = by_parts(x, case)
    far = 300 * 2.0**-16 if case.scale else 0.0  # scores of thousands are known to so many bits
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
        if CASES[x[0]].learned
    ],
    ids=str,
)
def test_parts_of_what_is_learned_come_to_the_whole(device: str, name: str, dtype: torch.dtype):
    """As exact as one call of all, within what eight draws of four numbers tell: by chance alone, two root mean squares
    of so few errors differ by up to a factor of 2. The error of a row's LSE is that of its probabilities, too."""
    case = CASES[name]
    ours, of_one = {key: 0.0 for key in case.learned}, {key: 0.0 for key in case.learned}
    joins = 0.0
    for seed in range(DRAWS):
        x = arrays(device, dtype, seed=seed)
        _, want_lse, want = reference(x, case)
        once, grads = whole(x, case)[2], by_parts(x, case)[2]
        joins = max(joins, lost_by_joins(want_lse))
        for key in case.learned:
            ours[key] += error(grads[key], want[key]) ** 2 / DRAWS
            of_one[key] += error(once[key], want[key]) ** 2 / DRAWS
    for key in case.learned:
        assert ours[key] ** 0.5 <= 2 * of_one[key] ** 0.5 + joins, key


@pytest.mark.parametrize(
    "dims", [(72, 40), *(pytest.param(x, marks=pytest.mark.long) for x in [(128, 128), (256, 256), (40, 64)])], ids=str
)
@pytest.mark.parametrize("layout", [BSHD, BHSD])
def test_head_dims_and_layouts(device: str, layout: int, dims: tuple[int, int]):
    case, x = CASES["causal"], arrays(device, torch.bfloat16, *dims)
    want, _, want_grads = reference(x, case)
    out, _, grads = by_parts(x, case, layout)
    assert error(out, want) < 2.0**-9
    for key, got in grads.items():
        assert error(got, want_grads[key]) < 2.0**-8, key


@pytest.mark.parametrize("name", few(["dropout", "score_mod and dropout"], "dropout"))
def test_heads_count_from_the_first_one_of_all(device: str, name: str):
    """All-to-all gives a rank some heads: their numbers are drawn, and a snippet reads its captures, by all heads."""
    case, x = CASES[name], arrays(device, torch.float32)
    want = reference(x, case)[0]
    outs = []
    for first in range(0, HEADS, 2):
        heads, keys = slice(first, first + 2), slice(first // 2, first // 2 + 1)
        more: dict[str, Any] = {"s_aux": x.sinks[heads]} if case.sinks else {}
        given = {"function": "part", "bottom_right": False, **call_of(x, case, heads), **more}
        q, k, v = x.q[:, :, heads], x.k[:, :, keys], x.v[:, :, keys]
        outs.append(_core.forward(q=q, k=k, v=v, first_head=first, all_heads=HEADS, **given)[0])
    assert error(torch.cat(outs, 2), want) < 2.0**-20
    own = [out for out in outs]
    given.pop("s_aux", None)
    alone = _core.forward(q=q, k=k, v=v, **given, **more)[0]
    assert error(alone, own[1].cpu().double()) > 0.01  # or the numbers say nothing


def test_packed_documents_have_positions_of_their_own(device: str):
    """Two shards of three documents, cut in their middle: starts of documents on a rank are tensors."""
    lengths, heads, cut = [30, 70, 28], 2, 64
    case = Case(window=(40, 0), alibi=True)
    make = torch.Generator("cpu").manual_seed(1)
    q, k, v, dout = (torch.randn(sum(lengths), heads, 64, generator=make, device="cpu").to(device) for _ in range(4))
    slopes = torch.tensor([0.5, 0.1], device=device)
    int32 = functools.partial(torch.tensor, dtype=torch.int32, device=device)
    ends = [sum(lengths[: i + 1]) for i in range(len(lengths))]
    starts = [0, *ends[:-1]]
    whole_cu = int32([0, *ends])

    leaves = [y.clone().requires_grad_() for y in (q, k, v)]
    want = xeflash.flash_attn_varlen_func(
        *leaves, whole_cu, whole_cu, max(lengths), max(lengths), window_size=case.window, alibi_slopes=slopes
    )
    want_grads = torch.autograd.grad(want, leaves, dout)

    out, lse = torch.full_like(q, torch.nan), torch.full((heads, len(q)), -torch.inf, device=device)
    sums = [torch.zeros_like(y) for y in (q, k, v)]
    shards = (slice(0, cut), slice(cut, len(q)))

    def side(shard: slice, which: str) -> dict[str, Any]:
        local = [min(max(e, shard.start), shard.stop) - shard.start for e in (0, *ends)]
        first = int32([max(shard.start - s, 0) for s in starts])
        return {f"cu_seqlens_{which}": int32(local), f"max_seqlen_{which}": cut + 1, f"{which}_start": first}

    call = {"layout": THD, "window_left": case.window[0], "window_right": 0, "alibi_slopes": slopes}
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


@pytest.mark.parametrize("rows", [1, 3, 17])
def test_few_queries_of_heads_that_share_keys(device: str, rows: int):
    """Where a tile has the rows of several heads, or decoding would split keys."""
    x = arrays(device, torch.bfloat16)
    q, k, v = x.q[:, :rows], x.k, x.v
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
    x = arrays(device, torch.bfloat16)
    out, lse = (
        torch.full(x.dout.shape, torch.nan, device=device),
        torch.full((BATCH, HEADS, ROWS), -torch.inf, device=device),
    )
    call: dict[str, Any] = {"layout": BSHD, "causal": True}
    attention_part(x.q, x.k, x.v, out, lse, k_start=1000, **call)
    assert (lse == -torch.inf).all() and not out.any()  # nothing was there, and nothing came
    attention_part(x.q, x.k, x.v, out, lse, **call)
    before = out.clone(), lse.clone()
    attention_part(x.q, x.k, x.v, out, lse, k_start=1000, **call)
    assert torch.equal(out, before[0]) and torch.equal(lse, before[1])


def flush(x: torch.Tensor) -> torch.Tensor:
    """A copy whose last byte lies before a page that nobody may touch."""
    size = x.numel() * x.element_size()
    return torch.from_numpy(guarded(size)[-size:]).view(x.dtype).view(x.shape).copy_(x)


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
    x = arrays(device, torch.bfloat16)
    first, second = (by_parts(x, CASES["causal"]) for _ in range(2))
    assert torch.equal(first[0], second[0]) and torch.equal(first[1], second[1])
    assert all(torch.equal(first[2][name], second[2][name]) for name in first[2])


def refusals(x: Arrays) -> dict[str, tuple[Callable[[], Any], type[Exception], str]]:
    """What must be refused before anything is written."""
    lse = torch.zeros(BATCH, HEADS, ROWS)
    given: dict[str, Any] = {"function": "f", "q": x.q, "k": x.k, "v": x.v}
    sums = torch.zeros(x.dout.shape)

    def forward(**more: Any) -> Callable[[], Any]:
        return lambda: _core.forward(**given | {"bottom_right": False} | more)

    def backward(**more: Any) -> Callable[[], Any]:
        own = {"dout": x.dout, "lse": lse, "delta": lse, "bottom_right": False, "wanted": ("q", "k", "v")}
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
            forward(other_lse=lse, out=torch.zeros(x.dout.shape, dtype=torch.bfloat16)), TypeError,
            "out must be float32 with other_lse",
        ),
        "view": (
            forward(other_lse=torch.zeros(BATCH, HEADS, 2 * ROWS)[:, :, ::2], out=sums), ValueError,
            "other_lse must be contiguous",
        ),
        "delta": (backward(dlse=lse), ValueError, "dlse must be None with delta"),
        "sum": (backward(dq=torch.zeros(3)), ValueError, "dq must have the shape of q"),
        "one sum": (backward(dq=torch.zeros(x.q.shape)), ValueError, "dk must be given where others are added to"),
        "unwanted": (backward(dq=torch.zeros(x.q.shape), wanted=()), ValueError, "dq must be None unless wanted has 'q'"),
    }  # fmt: skip


@pytest.mark.parametrize("name", refusals(arrays("cpu", torch.bfloat16)))
def test_refusals(name: str):
    call, kind, text = refusals(arrays("cpu", torch.bfloat16))[name]
    with pytest.raises(kind, match=f"f: {text}"):
        call()
