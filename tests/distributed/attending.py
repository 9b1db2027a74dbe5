"""Cases of attention over ranks: a Spec, how its call is made in each rank, and what it is compared with.

The reference is one process in float64, and the limits are those of tolerance.py and gradients.py.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any

import gradients
import torch
import torch.distributed as dist
import xeflash
from arrays import ArraysOf
from tolerance import by_rule
from torch.distributed.device_mesh import init_device_mesh
from xeflash.selftest.attention.drawn import Drawn, draw
from xeflash.selftest.attention.spec import Spec

WHOLE = ("alibi_slopes", "s_aux", "near")  # on each rank


@dataclass(frozen=True)
class Case:
    """A call; of how="ring+all_to_all" the group is a mesh of 2 x 2."""

    how: str
    world: int
    shards: str
    spec: Spec

    def __str__(self) -> str:
        return f"{self.how}-x{self.world}-{self.shards}-{self.spec.id}"


def over(how: str, world: int = 2, shards: str = "zigzag", chunk: int = 24, **more: Any) -> Case:
    """Of chunks of so many rows, and causal if nothing else is said; packed sequences take the rows as one of them."""
    rows = chunk * world * (2 if shards == "zigzag" else 1)
    usual = {"dtype": "fp32", "heads": (2 * world, 2), "rows": rows, "keys": rows, "window": "causal", "mean": 1.0}
    more = usual | more
    if isinstance(more["rows"], tuple):
        rest = rows - sum(more["rows"])
        more["rows"] = more["keys"] = (*more["rows"], *[rest] * (rest > 0))
        more["entry"] = "varlen"
    return Case(how, world, shards, Spec(**more, grad=True))


def drawn(case: Case) -> Drawn:
    """What all processes draw alike; dropout has the number of the rank that counts, rank 0."""
    generator = torch.Generator().manual_seed(11)
    seed = int(torch.empty((), dtype=torch.int64).random_(generator=generator))
    return replace(draw(case.spec), rng=(seed, 0))


def by_xeflash(case: Case) -> torch.Tensor:
    """The output of one process, by the public function for it."""
    undealt = drawn(case)
    torch.manual_seed(11)
    return getattr(xeflash, case.spec.function)(**undealt.arguments(undealt.put(ArraysOf(case.spec))))


# ---- in a rank ----------------------------------------------------------------------------------


@functools.cache
def mesh() -> Any:
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("ring", "heads"))


def attend(group: Any, case: Case, device: Any = "cpu", **changes: Any) -> list[dict[str, Any]]:
    """Twice: results and gradients of this rank's rows, which lie on this device, and what it sent in each pass."""
    import xeflash.distributed as cp
    from xeflash.distributed import transport

    how: Any = case.how
    if "+" in how:
        group, how = mesh(), tuple(how.split("+"))
    where, undealt, dim = {"group": group, "shards": case.shards}, drawn(case), 0 if case.spec.is_packed else 1
    put = {name: x.to(device) for name, x in undealt.put(ArraysOf(case.spec)).items()}
    for name, x in put.items():
        if name in ("q", "k", "v", "dout", "dlse"):
            put[name] = cp.shard(x, -1 if name == "dlse" else dim, **where)

    def over_ranks(q: Any, k: Any, v: Any, **said: Any) -> Any:
        more = {name: x for name, x in said.items() if not name.startswith(("cu_seqlens", "max_seqlen"))}
        more |= where | {"how": how} | changes
        if case.spec.is_packed:
            starts = said["cu_seqlens_q"], said["max_seqlen_q"]
            return cp.context_parallel_attn_varlen_func(q, k, v, *starts, **more)
        return cp.context_parallel_attn_func(q, k, v, **more)

    leaves = {name: put[name].clone().requires_grad_() for name in gradients.learned_of(undealt)}
    runs = []
    for _ in range(2):
        torch.manual_seed(11 + (dist.get_rank() if "+" in case.how else dist.get_rank(group)))  # rank 0's counts
        before = replace(transport.traffic)
        result = over_ranks(**undealt.words(put | leaves))
        forward = replace(transport.traffic)
        out, lse = result[:2] if case.spec.dlse else (result, None)
        results, into = ([out], [put["dout"]]) if lse is None else ([out, lse], [put["dout"], put["dlse"]])
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

    dim, joined = 0 if case.spec.is_packed else 1, {}
    for name, x in found[0].items():
        if not isinstance(x, torch.Tensor):
            continue
        parts = torch.stack([rank[name] for rank in found])
        if name.removeprefix("d") in WHOLE:
            joined[name] = parts.sum(0)
        else:
            at = x.dim() - 1 if name == "lse" else dim
            if "+" in case.how:  # inner ranges of outer shards
                parts = torch.stack([undeal(parts[i : i + 2], at, "ranges") for i in (0, 2)])
            joined[name] = undeal(parts, at, case.shards)
    return joined


def judge(case: Case, runs: list[list[dict[str, Any]]], kind: str = "torch") -> dict[str, torch.Tensor]:
    """Fails where results are beyond their limits, or are others the second time."""
    for first, second in runs:
        for name, x in first.items():
            assert torch.equal(x, second[name]) if isinstance(x, torch.Tensor) else x == second[name], f"{case} {name}"
    got, undealt, arrays = whole(case, [first for first, _ in runs]), drawn(case), ArraysOf(case.spec)
    arrays.on_gpu = kind != "torch"
    result = (got["out"], got["lse"]) if case.spec.dlse else got["out"]
    for finding in undealt.check(arrays, {}, result, by_rule):
        assert finding.ok, f"{case} {finding}"
    found = {name: got[f"d{name}"] for name in gradients.learned_of(undealt)}
    gradients.judge(undealt, found, found, torch.Generator().manual_seed(5), on_gpu=arrays.on_gpu)
    return got
