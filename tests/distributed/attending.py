"""Cases of attention over ranks: what they draw, how they are called in each rank, and what they are compared with.

The reference is one process in float64 (tolerance.formula and autograd). The limit is that of gradients.py: twice the
error of PyTorch's formula in the same type, or of float64 where scores, the LSE and Delta are moved by what fp32 makes
them off, and the rounding of the result.
"""

from __future__ import annotations

import functools
import itertools
from dataclasses import dataclass, replace
from typing import Any

import gradients
import torch
import torch.distributed as dist
import xeflash
from gradients import EXP2, direction_like, off_by
from tolerance import formula
from torch.distributed.device_mesh import init_device_mesh
from xeflash.selftest.reference import Features
from xeflash.selftest.tolerance import SCORES

SNIPPET = "s * near[h] - tilt * (q_idx - k_idx) + 0.125f * b"
TILT = 0.0625
DROPOUT = 0.25
SHORT = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class Case:
    """A call; of how="ring+all_to_all" the group is a mesh of 2 x 2."""

    how: str
    world: int = 2
    dtype: str = "float32"
    shards: str = "zigzag"
    chunk: int = 24  # rows
    causal: bool = True
    window: tuple[int, int] = (-1, -1)
    features: str = ""  # softcap, alibi, alibi_bh, sinks, snippet, dropout, lse
    documents: tuple[int, ...] = ()  # their tokens, for packed ones
    heads: tuple[int, int] = (0, 2)  # 0: two for each rank
    dims: tuple[int, int] = (64, 64)
    batch: int = 2
    scale: float | None = None
    mean: float = 1.0  # of V

    def __str__(self) -> str:
        words = [self.how, f"x{self.world}", self.dtype, self.shards, f"chunk{self.chunk}"]
        words += ["causal"] * self.causal + [f"window{self.window}"] * (self.window != (-1, -1))
        words += [self.features] * bool(self.features) + [f"documents{self.documents}"] * bool(self.documents)
        return "-".join(words).replace(" ", "")

    def has(self, feature: str) -> bool:
        return feature in self.features.split("+")

    @property
    def rows(self) -> int:
        return self.chunk * self.world * (2 if self.shards == "zigzag" else 1)


def draw(case: Case) -> dict[str, torch.Tensor]:
    """The tensors of the whole sequence, which all processes draw alike."""
    g = torch.Generator().manual_seed(sum(map(ord, str(case))))
    heads, heads_k = case.heads[0] or 2 * case.world, case.heads[1]
    lead = (case.rows,) if case.documents else (case.batch, case.rows)
    dtype = getattr(torch, case.dtype)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=g)

    t = {
        "q": normal(*lead, heads, case.dims[0]).to(dtype),
        "k": normal(*lead, heads_k, case.dims[0]).to(dtype),
        "v": (normal(*lead, heads_k, case.dims[1]) + case.mean).to(dtype),
        "dout": normal(*lead, heads, case.dims[1]).to(dtype),
        "dlse": normal(heads, case.rows) if case.documents else normal(case.batch, heads, case.rows),
    }
    if case.has("alibi"):
        t["alibi_slopes"] = normal(heads).abs() / 8
    if case.has("alibi_bh"):
        t["alibi_slopes"] = normal(len(case.documents) or case.batch, heads).abs() / 8
    if case.has("sinks"):
        t["s_aux"] = normal(heads)
    if case.has("snippet"):
        t["near"] = 1 + normal(heads) / 4
    return t


# ---- one process, in float64 or in the case's type -----------------------------------------------


def features_of(
    case: Case, t: dict[str, torch.Tensor], seed: int, document: int = 0, moved: torch.Generator | None = None
) -> Features:
    def changed(s: torch.Tensor, b: Any, h: Any, i: Any, j: Any) -> torch.Tensor:
        if case.has("snippet"):
            b, i, j = (torch.from_numpy(x) for x in (b, i, j))
            s = s * t["near"].to(s.dtype)[None, :, None, None] - TILT * (i - j) + 0.125 * (b + document)
        if moved:
            s = s + direction_like(s, moved) * (SCORES * s.detach().abs() + EXP2[SHORT[case.dtype]])
        return s

    slopes = t.get("alibi_slopes")
    return Features(
        scale=case.scale,
        window=(case.window[0], 0 if case.causal else case.window[1]),
        softcap=3.0 if case.has("softcap") else 0.0,
        alibi=slopes[document : document + 1]
        if case.documents and slopes is not None and slopes.dim() == 2
        else slopes,
        sinks=t.get("s_aux"),
        score_mod=changed if case.has("snippet") or moved else None,
        dropout=DROPOUT if case.has("dropout") else 0.0,
        rng=(seed, 0),
        batch0=0 if case.has("snippet") else document,
    )


def by_formula(
    case: Case, drawn: dict[str, torch.Tensor], seed: int, wide: bool, moved: torch.Generator | None = None
) -> dict[str, torch.Tensor]:
    """In float64 (`wide`) or in the case's type; `moved`: a generator of the directions in which roundings go."""

    def sized(s: torch.Tensor, size: torch.Tensor) -> torch.Tensor:
        return s + direction_like(s, moved) * SCORES * size

    off = sized if moved else None
    t = {name: x.double() if wide else x for name, x in drawn.items()}
    leaves = {name: x.clone().requires_grad_() for name, x in t.items() if name not in ("dout", "dlse")}
    if case.documents:
        starts = torch.tensor([0, *case.documents]).cumsum(0).tolist()
        outs, lses = [], []
        for i, (a, b) in enumerate(itertools.pairwise(starts)):
            q, k, v = (leaves[name][None, a:b].transpose(1, 2) for name in "qkv")
            out, lse = formula(q, k, v, features_of(case, leaves, seed, i, moved), off)
            outs.append(out.transpose(1, 2)[0])
            lses.append(lse[0])
        out, lse = torch.cat(outs), torch.cat(lses, 1)
    else:
        q, k, v = (leaves[name].transpose(1, 2) for name in "qkv")
        out, lse = formula(q, k, v, features_of(case, leaves, seed, 0, moved), off)
        out = out.transpose(1, 2)
    dout, dlse = t["dout"], t["dlse"] * case.has("lse")
    if moved:
        dout, dlse = upstream_moved(case, out.detach(), lse.detach(), dout, dlse, moved)
    found = dict(zip(leaves, torch.autograd.grad([out, lse], list(leaves.values()), [dout, dlse]), strict=True))
    return {"out": out.detach(), "lse": lse.detach(), **{f"d{name}": x for name, x in found.items()}}


def upstream_moved(case: Case, out: Any, lse: Any, dout: Any, dlse: Any, moved: torch.Generator) -> tuple[Any, Any]:
    """As in gradients.gradients_of: Delta moves dS as a gradient of the LSE does, and P is made from a rounded LSE."""
    short = SHORT[case.dtype]
    off = (2 * torch.rand(out.shape, generator=moved, dtype=out.dtype) - 1) * off_by(out, short)
    sums = (out * dout).abs().sum(-1)
    delta = (off * dout).sum(-1) + direction_like(sums, moved) * SCORES * sums
    kept = 1 + direction_like(lse, moved) * (SCORES * lse.abs() + EXP2[short])
    return dout * kept.mT[..., None], (dlse - delta.mT) * kept


def by_xeflash(case: Case) -> dict[str, torch.Tensor]:
    """One process, by the public function for it."""
    t = draw(case)
    leaves = {name: x.clone().requires_grad_() for name, x in t.items() if name not in ("dout", "dlse")}
    more, qkv = {**keywords(case, leaves), "return_attn_probs": False}, [leaves[name] for name in "qkv"]
    torch.manual_seed(11)
    if case.documents:
        starts, longest = torch.tensor([0, *case.documents]).cumsum(0).int(), max(case.documents)
        out = xeflash.flash_attn_varlen_func(*qkv, starts, starts, longest, longest, **more)
    else:
        out = xeflash.flash_attn_func(*qkv, **more)
    return {"out": out.detach()}


# ---- in a rank ----------------------------------------------------------------------------------


@functools.cache
def mesh() -> Any:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("ring", "heads"))


def keywords(case: Case, leaves: dict[str, torch.Tensor]) -> dict[str, Any]:
    more: dict[str, Any] = {
        "causal": case.causal, "window_size": case.window, "softmax_scale": case.scale,
        "softcap": 3.0 if case.has("softcap") else 0.0, "dropout_p": DROPOUT if case.has("dropout") else 0.0,
        "alibi_slopes": leaves.get("alibi_slopes"), "s_aux": leaves.get("s_aux"), "return_attn_probs": case.has("lse"),
    }  # fmt: skip
    if case.has("snippet"):
        more |= {"score_mod": SNIPPET, "captures": {"near": leaves["near"], "tilt": TILT}}
    return more


def attend(group: Any, case: Case, device: Any = "cpu", **changes: Any) -> list[dict[str, Any]]:
    """Twice: results and gradients of this rank's rows, which lie on this device, and what it sent in each pass."""
    import xeflash.distributed as cp
    from xeflash.distributed import transport

    how: Any = case.how
    if "+" in how:
        group, how = mesh(), tuple(how.split("+"))
    where = {"group": group, "shards": case.shards}
    t, dim = {name: x.to(device) for name, x in draw(case).items()}, 0 if case.documents else 1
    leaves = {n: x.clone() if n in ("alibi_slopes", "s_aux", "near") else cp.shard(x, dim, **where) for n, x in t.items()
              if n not in ("dout", "dlse")}  # fmt: skip
    dout, dlse = cp.shard(t["dout"], dim, **where), cp.shard(t["dlse"], -1, **where)
    for x in leaves.values():
        x.requires_grad_()
    runs = []
    for _ in range(2):
        torch.manual_seed(11 + (dist.get_rank() if "+" in case.how else dist.get_rank(group)))  # rank 0's counts
        before = replace(transport.traffic)
        qkv = [leaves[name] for name in "qkv"]
        more = keywords(case, leaves) | where | {"how": how} | changes
        if case.documents:
            starts = torch.tensor([0, *case.documents]).cumsum(0).int().to(device)
            result = cp.context_parallel_attn_varlen_func(*qkv, starts, max(case.documents), **more)
        else:
            result = cp.context_parallel_attn_func(*qkv, **more)
        forward = replace(transport.traffic)
        out, lse = result[:2] if case.has("lse") else (result, None)
        results, into = ([out], [dout]) if lse is None else ([out, lse], [dout, dlse])
        found = dict(zip(leaves, torch.autograd.grad(results, list(leaves.values()), into), strict=True))
        after = transport.traffic
        runs.append({
            "out": out.detach().cpu(), **({} if lse is None else {"lse": lse.detach().cpu()}),
            **{f"d{name}": x.cpu() for name, x in found.items()},
            "sent": (forward.bytes - before.bytes, after.bytes - forward.bytes),
            "messages": (forward.messages - before.messages, after.messages - forward.messages),
        })  # fmt: skip
    return runs


# ---- judging ------------------------------------------------------------------------------------


def whole(case: Case, found: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """Of each rank's rows, and each rank's part of a gradient, those of one process."""
    from xeflash.distributed.shards import undeal

    dim, joined = 0 if case.documents else 1, {}
    for name, x in found[0].items():
        if not isinstance(x, torch.Tensor):
            continue
        parts = torch.stack([rank[name] for rank in found])
        if name in ("dalibi_slopes", "ds_aux", "dnear"):
            joined[name] = parts.sum(0)
        else:
            at = x.dim() - 1 if name == "lse" else dim
            if "+" in case.how:  # inner ranges of outer shards
                parts = torch.stack([undeal(parts[i : i + 2], at, "ranges") for i in (0, 2)])
            joined[name] = undeal(parts, at, case.shards)
    return joined


def seed_of_rank_0() -> int:
    of_torch = torch.Generator().manual_seed(11)
    return int(torch.empty((), dtype=torch.int64).random_(generator=of_torch))


def judge(case: Case, runs: list[list[dict[str, Any]]], on_gpu: bool = False) -> dict[str, torch.Tensor]:
    """Fails where results are beyond their limits, or are others the second time."""
    for first, second in runs:
        for name, x in first.items():
            assert torch.equal(x, second[name]) if isinstance(x, torch.Tensor) else x == second[name], f"{case} {name}"
    got, t, seed = whole(case, [first for first, _ in runs]), draw(case), seed_of_rank_0()
    want, by_torch = (by_formula(case, t, seed, wide) for wide in (True, False))
    directions = torch.Generator().manual_seed(5)
    moved = [by_formula(case, t, seed, True, directions) for _ in range(gradients.DRAWS)]
    for name, x in got.items():
        others = [run[name] for run in moved]
        gradients.check(f"{case} {name}", x, want[name], by_torch[name].to(x.dtype), others, on_gpu)
    return got
