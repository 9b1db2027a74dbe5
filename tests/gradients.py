"""A case of gradients: `run` takes them by a public function, and checks them against float64 autograd of the formula.

    max |got - want|  <=  2 e + ulp(max |want|),    e = max(max |torch - want|, max |moved - want|, ulp32(max |want|))
    |got - want|_2    <=  2 e + ulp(1) |want|_2,    e = max(|torch - want|_2, |moved - want|_2)

`moved` are the gradients in float64 where scores are off by what fp32 makes them off (tolerance.py): by 2^-23 of the
size of a score before cancellation, or of the LSE, which is taken from it; and by what exp2 is off by: in 16 bits it has
few terms, and is right to a small part of an ulp; and Delta = rowsum(dO O) is off by what fp32 makes a sum of its terms
off, and as O is: up to half an ulp, as P was rounded, and in fp32 half of one more, as what rounding takes from O is kept
in 16 bits only; and P is made from the LSE, which is kept in fp32, of such exp2: so it scales the weights of a row, which
a softmax would make up for. All at random: the largest of DRAWS counts.
`torch` is autograd of the formula as PyTorch computes it in the dtype under test: scores and softmax in fp32,
probabilities cast to the dtype, second product in the dtype; ulp is the spacing of a gradient's own dtype, and what it
adds is the rounding of the result and of one factor. On a GPU exp2 is the hardware's, right to 2^-21.
Nothing here is the library's but what is tested, which keys a query sees, and the definition of dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from random import Random
from typing import Any, TypeAlias

import torch
import xeflash
from arrays import DTYPES, SMALL_LAYOUTS, lay_out, to_xpu
from tolerance import dtype_name
from xeflash.selftest.reference import distance, dropout_scale, visible
from xeflash.selftest.tolerance import GPU_MATH, SCORES, ulp

HEADS = {"mha": (2, 2), "gqa4": (8, 2), "mqa": (3, 1), "gqa5": (10, 2)}
WINDOWS = {"full": (-1, -1), "causal": (-1, 0), "window": (31, 5), "left": (50, -1), "right": (-1, 10)}
DROPOUT, RNG, DRAWS = 0.25, (0x1234_5678_9ABC, 0), 3
LOST = 2.0**26  # times a score: fp32 has no bit left for it beside such a number, nor for twice of it
FAR_LSE = 512.0  # P is made from larger ones in a way that does not round them
EXP2 = {"fp32": 0.0, "fp16": 2.6e-6, "bf16": 7.5e-5}  # what the CPU's, of few terms, is right to
LEAST = 2.0**-126  # below it fp32 may be flushed to 0
SNIPPET = "select((q_idx + k_idx) % period == 3, -inf, s + tilt * tanh(s * near[h]) + near[(k_idx + b) % period])"
PERIOD, TILT = 7, 0.75


@dataclass(unsafe_hash=True)  # frozen ones take three times as long to make
class Case:
    kernel: tuple[str, int, int] = ("fp32", 64, 64)
    sizes: tuple[int, int] = (127, 127)
    heads: str = "mha"
    window: str = "full"
    top_left: bool = False
    variant: str = "plain"
    broadcast: str = "bhqk"
    bh_slopes: bool = False
    sinks: bool = False
    scale: float | None = None
    layout: str = "bshd"
    layout_of_dout: str = "bshd"
    entry: str = "attention"
    dlse: bool = False
    values: str = "normal"  # of Q, K and V: large, small, zero, sparse; equal ones err alike, unlike `moved`
    queries: float = 1.0  # a factor of Q
    hidden: str = "-inf"  # what a bias hides keys by: a number, or the lowest of its type
    hidden_rows: bool = False  # a bias or a mask hides all keys of some rows, too
    ends_of_sinks: bool = False  # some sinks are -inf
    documents: str = ""  # of DOCUMENTS
    chunk: int = 0
    fixed: str = ""  # of what could have a gradient: the names, with + between, that nobody asks for
    device: str = "cpu"

    @property
    def id(self) -> str:
        (dtype, dim, dim_v), (rows, keys) = self.kernel, self.sizes
        parts = [dtype, f"d{dim}" if dim == dim_v else f"d{dim}x{dim_v}", f"q{rows}", f"k{keys}", self.heads]
        for field in fields(self)[3:-1]:
            value = getattr(self, field.name)
            if value != field.default:
                parts.append(field.name if value is True else f"{value}")
        return "-".join(parts)

    def has(self, variant: str) -> bool:
        return variant in self.variant.split("+")


def is_possible(case: Case) -> bool:
    if (case.broadcast != "bhqk" and not (case.has("bias") or case.has("mask"))) or (
        case.bh_slopes and not case.has("alibi")
    ):
        return False  # says nothing
    if case.entry != "attention" and (case.has("bias") or case.has("mask") or case.top_left):
        return False
    if case.documents and (case.entry == "varlen" or (case.top_left and case.sizes[0] != case.sizes[1])):
        return False
    return not (case.top_left and case.window == "full")


DIMS = (8, 16, 24, 40, 64, 72, 80, 96, 128, 192, 256)
ODD_DIMS = (1, 3, 15, 23, 59, 111)  # not on GPUs
ENTRIES = ("attention", "func", "varlen")
ROWS = (1, 2, 5, 7, 8, 9, 15, 16, 17, 23, 31, 32, 33, 63, 64, 65, 100, 127, 128, 129, 0)


# Ids of n positions of two sequences.
DOCUMENTS: dict[str, Callable[[int, torch.Generator], torch.Tensor]] = {
    "sorted": lambda n, random: torch.randint(-3, n // 30 + 1, (2, n), generator=random).sort().values,
    "random": lambda n, random: torch.randint(-2, 3, (2, n), generator=random),
    "one": lambda n, random: torch.full((n,), -7),
    "different": lambda n, random: torch.randperm(n, generator=random),
}
Kernel: TypeAlias = tuple[tuple[str, int, int], str]  # with a variant


def random_kernel(random: Random, device: str = "cpu") -> Kernel:
    dims = DIMS if device == "xpu" else DIMS + ODD_DIMS
    dim = random.choice(dims)
    kernel = (random.choice(list(DTYPES)), dim, random.choice(dims) if random.random() < 0.3 else dim)
    return kernel, random_variant(random)


def random_variant(random: Random) -> str:
    names = [name for name in ("softcap", "alibi", "snippet") if random.random() < 0.2]
    names += random.choices((["bias"], ["mask"], ["dropout"], []), (2, 1, 1, 4))[0]
    return "+".join(names) or "plain"


def random_case(random: Random, kernel: Callable[[], Kernel], device: str = "cpu", entries: Any = ENTRIES) -> Case:
    """Any that one of the functions takes."""

    def chance(p: float) -> bool:
        return random.random() < p

    def drawn() -> Case:
        compiled, variant = kernel()
        sinks = chance(0.3)
        learned = [*"qkv", *("attn_mask",) * ("bias" in variant), *("alibi_slopes",) * ("alibi" in variant)]
        learned += ["s_aux"] * sinks
        fixed = [name for name in learned if chance(0.5)] if chance(0.3) else []
        sides = f"{random.choice((-1, 0, 1, 5, 40))},{random.choice((-1, 0, 1, 5, 40))}"
        return Case(
            compiled,
            (random.choice(ROWS), random.choice(ROWS)),
            random.choice(list(HEADS)),
            random.choice([*WINDOWS, sides]),
            top_left=chance(0.2),
            variant=variant,
            broadcast=random.choice(("bhqk", "1hqk", "b11k", "1hq1", "k", "b1qk", "bh1k", "qk", "1111")),
            bh_slopes=chance(0.3),
            sinks=sinks,
            scale=random.choice((None, None, 0.3, -0.2, 1.0)),
            layout=random.choice(SMALL_LAYOUTS),
            layout_of_dout=random.choice(("bshd", "expanded", "bhsd", "odd")),
            entry=random.choice(entries),
            dlse=chance(0.4),
            values=random.choices(("normal", "large", "small", "zero", "sparse"), (10, 1, 1, 1, 1))[0],
            fixed="+".join(fixed if len(fixed) < len(learned) else fixed[1:]),
            device=device,
        )

    while not is_possible(case := drawn()):
        pass
    return case


def window_of(case: Case) -> tuple[int, int]:
    """Below the number of keys, from which on flash-attn takes a side to be unlimited."""
    left, right = WINDOWS.get(case.window) or map(int, case.window.split(","))
    most = max(case.sizes[1], 1) - 1
    return min(left, most), min(right, most)


# ---- the formula --------------------------------------------------------------------------------

Tensors = dict[str, torch.Tensor]


def formula(case: Case, t: Tensors, fixed: Tensors, first: int = 0, moved: Any = None) -> Any:
    """(O, LSE) of q, k, v (B, H, S, D), in float64 if they are, else as torch computes in 16 and 32 bits.

    `moved`: a generator of the directions in which roundings move scores.
    """
    q, k, v = t["q"], t["k"], t["v"]
    (batch, heads, rows, dim), keys, dtype = q.shape, k.shape[2], q.dtype
    work = torch.float64 if dtype is torch.float64 else torch.float32
    k, v = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (k, v))
    seen = torch.from_numpy(visible(rows, keys, window_of(case), case.top_left))
    far = torch.from_numpy(distance(rows, keys, case.top_left)).abs()
    scale = dim**-0.5 if case.scale is None else case.scale
    s = q.to(work) @ k.to(work).mT * scale
    size = (q.abs() @ k.abs().mT * abs(scale)).detach() if moved else None
    lost = torch.zeros((), dtype=torch.bool)
    if case.has("softcap"):
        if moved:
            s, size = s + direction_like(s, moved) * SCORES * size, 0 * size
        s = 3 * torch.tanh(s / 3)
    if case.has("alibi"):
        s = s - t["alibi_slopes"].expand(-1 if case.bh_slopes else batch, heads)[:, :, None, None] * far
    if case.has("bias"):  # beside some numbers fp32 forgets a score, whatever it is
        bias = t["attn_mask"].detach().to(work)
        lost = (bias.abs() > LOST * s.detach().abs().amax(-1, keepdim=True)) & bias.isfinite() if keys else lost
        s = torch.where(lost, s - s.detach(), s) + t["attn_mask"]
    if case.has("mask"):
        s = s.masked_fill(~fixed["attn_mask"], -torch.inf)
    if case.has("snippet"):
        i, j, near = torch.arange(rows)[:, None], torch.arange(keys), fixed["near"].to(work)
        b, h = torch.arange(batch)[:, None, None, None] + first, torch.arange(heads)[:, None, None]
        s = s + TILT * torch.tanh(s * near[h]) + near[(j + b) % PERIOD]
        s = s.masked_fill((i + j) % PERIOD == 3, -torch.inf)
    s = s.masked_fill(~seen, -torch.inf)
    if case.chunk:
        positions = torch.arange(rows) + (0 if case.top_left else keys - rows)
        s = s.masked_fill((positions // case.chunk)[:, None] != torch.arange(keys) // case.chunk, -torch.inf)
    if case.documents:
        ids = fixed["document_ids"].expand(batch, keys)[:, None]
        s = s.masked_fill(ids[..., keys - rows :, None] != ids[..., None, :], -torch.inf)
    if case.sinks:
        s = torch.cat([s, t["s_aux"].to(work)[:, None, None].expand(batch, -1, rows, 1)], dim=-1)
    empty = (s == -torch.inf).all(-1, keepdim=True)
    s = s.masked_fill(empty, 0.0)
    if moved and s.shape[-1]:
        lse = torch.logsumexp(s.detach(), -1, keepdim=True)
        size = torch.nn.functional.pad(size, (0, s.shape[-1] - keys)).maximum(s.detach().abs()).maximum(lse.abs())
        size = size.masked_fill(torch.nn.functional.pad(lost.expand(*s.shape[:-1], keys), (0, s.shape[-1] - keys)), 0.0)
        s = s + direction_like(s, moved) * (SCORES * size.nan_to_num(posinf=0.0) + EXP2[case.kernel[0]])
    if s.shape[-1]:  # whose gradient is the softmax of scores of any size
        most = s.detach().amax(-1, keepdim=True)
        lse = torch.logsumexp(s - most, -1) + most[..., 0]
    else:
        lse = s.sum(-1)
    p = torch.softmax(s, -1)[..., :keys].masked_fill(empty, 0.0)
    if case.has("dropout"):
        p = p * torch.from_numpy(dropout_scale((batch, heads, rows, keys), DROPOUT, rng_of(case), first)).to(p.dtype)
    return p.to(dtype) @ v, lse.masked_fill(empty[..., 0], 0.0)


# ---- a case -------------------------------------------------------------------------------------


def lengths(case: Case) -> tuple[list[int], list[int]]:
    """Of the sequences: two of one size, or packed ones of several, of which some have no queries or no keys."""
    rows, keys = case.sizes
    if case.entry != "varlen":
        return [rows] * 2, [keys] * 2
    return [rows, 0, rows // 2 + 1, max(1, rows // 3)], [keys, keys // 2, 0, max(1, keys // 3)]


def draw(case: Case, generator: torch.Generator) -> tuple[Tensors, Tensors]:
    """What is learned, in the words of the flash_attn functions and their layout, and the rest."""
    (name, dim, dim_v), (heads, heads_k) = case.kernel, HEADS[case.heads]
    dtype, (rows, keys) = DTYPES[name], case.sizes
    of_q, of_k = lengths(case)
    lead_q, lead_k = ((sum(of_q),), (sum(of_k),)) if case.entry == "varlen" else ((2, rows), (2, keys))

    def normal(*shape: int, layout: str = "") -> torch.Tensor:
        values = torch.randn(shape, generator=generator)
        return lay_out(values.to(dtype), layout) if layout else values

    def some(*shape: int) -> torch.Tensor:
        x = torch.randn(shape, generator=generator)
        by_name = {"large": x * 5, "small": x * 1e-3, "zero": torch.zeros(shape)}
        by_name["sparse"] = torch.where(x > 1, x * 4, 0)
        return lay_out(by_name.get(case.values, x).to(dtype), case.layout)

    t = {"q": some(*lead_q, heads, dim), "k": some(*lead_k, heads_k, dim), "v": some(*lead_k, heads_k, dim_v)}
    if case.layout_of_dout == "expanded":
        dout = normal(1, 1, 1, layout="bshd").expand(*lead_q, heads, dim_v)
    else:
        dout = normal(*lead_q, heads, dim_v, layout=case.layout_of_dout)
    t["q"] = t["q"] * case.queries
    fixed = {"dout": dout, "near": torch.rand(max(heads, PERIOD), generator=generator)}
    if case.documents:
        fixed["document_ids"] = DOCUMENTS[case.documents](keys, generator).int()
    if case.dlse:
        fixed["dlse"] = normal(heads, lead_q[0]) if case.entry == "varlen" else normal(2, heads, rows)
    if case.sinks:
        t["s_aux"] = normal(heads)
        if case.ends_of_sinks:
            t["s_aux"][::2] = -torch.inf
    if case.has("alibi"):
        t["alibi_slopes"] = torch.rand((len(of_q), heads) if case.bh_slopes else (heads,), generator=generator) / 4
    if case.has("bias") or case.has("mask"):
        sizes = {"b": 2, "h": heads, "q": rows, "k": keys, "1": 1}
        shape = [sizes[letter] for letter in case.broadcast]
        hidden = torch.rand(shape, generator=generator) < 0.2
        if case.hidden_rows:
            hidden |= torch.rand((*shape[:-1], 1), generator=generator) < 0.3
        if case.has("mask"):
            fixed["attn_mask"] = ~hidden
        else:
            t["attn_mask"] = normal(*shape).to(dtype).masked_fill(hidden & (len(shape) > 1), hidden_by(case))
    return t, fixed


def hidden_by(case: Case) -> float:
    """In the numbers of a type."""
    lowest = torch.finfo(DTYPES[case.kernel[0]]).min
    number = lowest if case.hidden == "lowest" else float(case.hidden)
    return number if number == -torch.inf else max(number, lowest)


def call(case: Case, t: Tensors, fixed: Tensors) -> Any:
    """(out, LSE) by the public function; as its caller would have them."""
    device = t["q"].device
    left, right = window_of(case)
    causal = case.window == "causal"
    window = (left, -1 if causal else right)
    more: dict[str, Any] = {"window_size": window, "softcap": 3.0 if case.has("softcap") else 0.0}
    more["alibi_slopes"] = t.get("alibi_slopes")
    more["dropout_p"] = DROPOUT if case.has("dropout") else 0.0
    if case.chunk:
        more["attention_chunk"] = case.chunk
    if case.documents:
        more["document_ids"] = fixed["document_ids"]
    if case.has("snippet"):
        more |= {"score_mod": SNIPPET, "captures": {"near": fixed["near"], "tilt": TILT, "period": PERIOD}}
    if case.entry == "attention":
        mask = t.get("attn_mask", fixed.get("attn_mask"))
        q, k, v = (t[name].transpose(1, 2) for name in "qkv")
        out, lse = xeflash.attention(
            q, k, v, mask, is_causal=causal, scale=case.scale, enable_gqa=True, bottom_right=not case.top_left,
            sinks=t.get("s_aux"), return_lse=True, rng=RNG, **more,
        )  # fmt: skip
        return out.transpose(1, 2), lse
    torch.manual_seed(RNG[0])
    if device.type == "xpu":
        torch.xpu.manual_seed(RNG[0])
    more |= {"causal": causal, "softmax_scale": case.scale, "s_aux": t.get("s_aux"), "return_attn_probs": case.dlse}
    if case.entry == "func":
        result = xeflash.flash_attn_func(t["q"], t["k"], t["v"], **more)
        return result[:2] if case.dlse else (result, None)
    of_q, of_k = lengths(case)
    starts = [torch.tensor([0, *n], device=device).cumsum(0).int() for n in (of_q, of_k)]
    result = xeflash.flash_attn_varlen_func(t["q"], t["k"], t["v"], *starts, max(of_q), max(of_k), **more)
    return result[:2] if case.dlse else (result, None)


def rng_of(case: Case) -> tuple[int, int]:
    """What dropout draws from: a call's own seed and offset, or a number of torch's generator."""
    if case.entry == "attention" or case.device == "xpu":
        return RNG
    of_torch = torch.Generator().manual_seed(RNG[0])
    return int(torch.empty((), dtype=torch.int64).random_(generator=of_torch)), 0


def gradients_of(case: Case, t: Tensors, fixed: Tensors, moved: Any = None) -> Tensors:
    """By autograd of the formula, in the dtypes of `t`; `moved`: a generator of the directions in which roundings go."""
    leaves = {name: x.detach().clone().requires_grad_() for name, x in t.items()}
    dout = fixed["dout"].to(t["q"].dtype)
    dlse = fixed["dlse"].to(torch.float64 if dout.dtype is torch.float64 else torch.float32) if case.dlse else None
    results, wanted = [], []
    if case.entry != "varlen":
        given = leaves | {name: leaves[name].transpose(1, 2) for name in "qkv"}
        out, lse = formula(case, given, fixed, moved=moved)
        results, wanted = [out.transpose(1, 2), lse], [dout, dlse]
    else:
        at_q = at_k = 0
        for b, (n_q, n_k) in enumerate(zip(*lengths(case), strict=True)):
            given = dict(leaves)
            for name, at, n in (("q", at_q, n_q), ("k", at_k, n_k), ("v", at_k, n_k)):
                given[name] = leaves[name][None, at : at + n].transpose(1, 2)
            if case.bh_slopes:
                given["alibi_slopes"] = leaves["alibi_slopes"][b : b + 1]
            out, lse = formula(case, given, fixed, b, moved)
            results += [out.transpose(1, 2)[0], lse[0]]
            wanted += [dout[at_q : at_q + n_q], None if dlse is None else dlse[:, at_q : at_q + n_q]]
            at_q, at_k = at_q + n_q, at_k + n_k
    if moved:  # Delta moves dS as a gradient of the LSE does; weights that are scaled are as a dO and a dLSE that are
        for i in range(0, len(results), 2):
            out, lse = results[i].detach(), results[i + 1].detach()
            terms = out * wanted[i]
            off = (2 * torch.rand(out.shape, generator=moved, dtype=out.dtype) - 1) * off_by(out, case.kernel[0])
            sums = terms.abs().sum(-1)
            delta = (off * wanted[i]).sum(-1) + direction_like(sums, moved) * SCORES * sums
            delta = delta.transpose(-1, -2)
            of_lse = SCORES * lse.abs().nan_to_num(posinf=0.0).clamp(max=FAR_LSE) + EXP2[case.kernel[0]]
            kept_lse = 1 + direction_like(lse, moved) * of_lse
            wanted[i] = wanted[i] * kept_lse.transpose(-1, -2)[..., None]
            wanted[i + 1] = ((0 if wanted[i + 1] is None else wanted[i + 1]) - delta) * kept_lse
    pairs = [(x, dx) for x, dx in zip(results, wanted, strict=True) if dx is not None]
    outputs, upstream = zip(*pairs, strict=True)
    found = torch.autograd.grad(outputs, list(leaves.values()), upstream, allow_unused=True)
    return {
        name: torch.zeros_like(x) if dx is None else dx for (name, x), dx in zip(leaves.items(), found, strict=True)
    }


def direction_like(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """1 or -1 for each element, at random."""
    return 2 * torch.randint(0, 2, x.shape, generator=generator) - 1


def off_by(out: torch.Tensor, dtype: str) -> torch.Tensor:
    """What each element of an output in float64 is off by at most, see above: an ulp in fp32, else half of one.

    What rounding took is kept times 2^8, in the type itself: of fp16's least numbers no more than that is left.
    """
    ulps = torch.exp2(torch.frexp(out).exponent.double() - 1) * torch.finfo(DTYPES[dtype]).eps
    if dtype == "fp32":
        return ulps
    kept = torch.finfo(DTYPES[dtype])
    return (ulps / 2).clamp(min=kept.tiny * kept.eps / 2 * 2.0**-8)


def check(what: str, got: Any, want: torch.Tensor, by_torch: Any, moved: list[torch.Tensor], on_gpu: bool) -> None:
    """The rule on top of this file."""
    assert got.shape == want.shape and got.dtype == by_torch.dtype, f"{what}: {got.dtype} of {list(got.shape)}"
    if not want.numel():
        return
    dtype = dtype_name(by_torch)
    error, error_of_torch, *by_scores = (x.double() - want for x in (got, by_torch, *moved))
    assert error.isfinite().all(), f"{what}: {int((~error.isfinite()).sum())} of {error.numel()} are not finite"
    largest = float(want.abs().max())
    more = GPU_MATH * 8 if on_gpu else 0.0
    farthest, by_others = float(error.abs().max()), [float(x.abs().max()) for x in (error_of_torch, *by_scores)]
    limit = 2 * max(*by_others, ulp(largest, "float32")) + ulp(largest, dtype) + more * largest
    limit = max(limit, LEAST)
    worst = int(error.abs().argmax())
    values = [float(x.flatten()[worst]) for x in (got, want)]
    assert farthest <= limit, (
        f"{what}: element {worst}, got {values[0]!r}, want {values[1]!r}, error {farthest:.3g}, limit {limit:.3g}; "
        f"of torch, and moved: {by_others}"
    )
    length, by_others = float(error.norm()), [float(x.norm()) for x in (error_of_torch, *by_scores)]
    limit = max(2 * max(by_others) + (ulp(1.0, dtype) + more) * float(want.norm()), LEAST * want.numel())
    assert length <= limit, f"{what}: error {length:.3g} in L2, limit {limit:.3g}; of torch, and moved: {by_others}"


def judge(
    case: Case, t: Tensors, fixed: Tensors, found: Sequence[torch.Tensor], again: Sequence[torch.Tensor],
    generator: torch.Generator, draws: int = DRAWS,
) -> None:  # fmt: skip
    """The gradients that are asked for, taken twice, against autograd's."""
    wide = {name: x.double() for name, x in t.items()}
    want = gradients_of(case, wide, fixed)
    moved = [gradients_of(case, wide, fixed, generator) for _ in range(draws)]
    by_torch = gradients_of(case, t, fixed)
    asked = [name for name in t if name not in case.fixed.split("+")]
    for name, dx, same in zip(asked, found, again, strict=True):
        others = [m[name] for m in moved]
        check(f"{case.id} d{name}", dx.cpu(), want[name], by_torch[name], others, case.device == "xpu")
        assert torch.equal(dx, same), f"{case.id} d{name}: bits change"


def gradients_twice(case: Case, leaves: Tensors, fixed: Tensors, out: torch.Tensor, lse: Any) -> tuple[Any, Any]:
    """By autograd of a call, with respect to the leaves that require them."""
    results, into = ([out, lse], [fixed["dout"], fixed["dlse"]]) if case.dlse else ([out], [fixed["dout"]])
    asked = [x for x in leaves.values() if x.requires_grad]
    return torch.autograd.grad(results, asked, into, retain_graph=True), torch.autograd.grad(results, asked, into)


def run(case: Case) -> None:
    generator = torch.Generator().manual_seed(sum(map(ord, case.id)))
    t, fixed = draw(case, generator)
    there = to_xpu if case.device == "xpu" else torch.Tensor.detach
    leaves = {name: there(x).requires_grad_(name not in case.fixed.split("+")) for name, x in t.items()}
    others = {name: there(x) for name, x in fixed.items()}
    found, again = gradients_twice(case, leaves, others, *call(case, leaves, others))
    judge(case, t, fixed, found, again, generator)
