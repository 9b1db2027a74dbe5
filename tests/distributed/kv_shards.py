"""A case of attention on a cache that lies on all ranks, which each rank of a group runs beside one process's call."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, fields
from typing import Any

import torch
import torch.distributed as dist
import xeflash
from tolerance import by_rule, dtype_name
from xeflash.distributed.decode import context_parallel_with_kvcache
from xeflash.distributed.owners import local_lengths
from xeflash.distributed.transport import traffic
from xeflash.selftest.reference import Features, to_float64

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "int8": torch.int8}
PAGE = 16  # of paged caches


@dataclass(frozen=True)
class Case:
    lengths: tuple[int, ...]  # keys before the new ones
    as_int: bool = False  # cache_seqlens is a number
    owners: str = "pages"
    page: int = 16  # of owners="pages"
    dtype: str = "fp32"
    format: str = ""  # of the cache, if another
    scales: str = ""  # "number", "array"
    place: str = "plain"  # "paged", "index"
    rows: int = 1
    new: int = 1
    heads: tuple[int, int] = (4, 2)
    dim: int = 64
    causal: bool = True
    window: tuple[int, int] = (-1, -1)
    softcap: float = 0.0
    sinks: bool = False
    alibi: bool = False
    rotary: str = ""  # "pairs", "halves"
    score_mod: str = ""
    calls: int = 1  # one behind the other
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        """What is not the default."""
        given = [(x.name, getattr(self, x.name)) for x in fields(self)[1:] if x.name != "options"]
        named = [f"{name}={x}" for (name, x), of in zip(given, fields(self)[1:], strict=False) if x != of.default]
        return "-".join(["lengths=" + "+".join(map(str, self.lengths)), *named, *self.options]).replace(" ", "")

    def run(self, world: int) -> str:
        """A digest of the results of all ranks, which have the same."""
        import ranks

        found = ranks.run(run, self, world=world)
        assert not [x for _, errors, _ in found for x in errors], "\n".join(x for _, errors, _ in found for x in errors)
        assert len({bits for bits, _, _ in found}) == 1, "ranks have different bits"
        wide = self.rows * self.heads[0] * len(self.lengths)
        size = wide * (self.dim * DTYPES[self.dtype].itemsize + 4)
        # A message of one LSE and D numbers per row, whatever the context is.
        assert {sent for _, _, sent in found} == {self.calls * (world - 1) * -(-size // 16) * 16}
        return found[0][0]


NO_PAGE = -(1 << 28)  # in a table: who reads such a page dies


@dataclass
class Local:
    """A rank's cache, made of one that has all rows, and where its rows are."""

    arrays: dict[str, Any]
    mine: list[torch.Tensor]  # of each sequence, the positions that it will have
    tables: dict[str, torch.Tensor]

    def rows(self, name: str, b: int, count: int) -> torch.Tensor:
        x = self.arrays[name]
        if "block_table" in self.tables:
            return x[self.tables["block_table"][b].long().clamp(min=0)].flatten(0, 1)[:count]
        index = self.tables.get("cache_batch_idx")
        return x[b if index is None else int(index[b]), :count]


def local_cache(
    case: Case, whole: dict[str, torch.Tensor], ends: list[int], world: int, rank: int
) -> tuple[Local, int]:
    """With the keys before the call; what is not a key is NaN."""
    batch, longest = len(case.lengths), max(ends)
    size = case.page if case.owners == "pages" else -(-longest // (world * PAGE)) * PAGE + PAGE

    def owner(p):
        return p // size % world

    mine = [torch.arange(n)[owner(torch.arange(n)) == rank] for n in ends]
    room = -(-longest // (world * size)) * size
    room = -(-room // PAGE) * PAGE
    tables: dict[str, torch.Tensor] = {}
    if case.place == "paged":
        columns = room // PAGE
        pages = torch.full((batch, columns + 1), NO_PAGE, dtype=torch.int32)  # nor is there one beyond a row
        pages[:, :-1] = torch.randperm(batch * columns + 2)[: batch * columns].view(batch, columns)
        tables["block_table"] = pages[:, :-1]
        used = [-(-len(m) // PAGE) for m in mine]
        for row, n in zip(tables["block_table"], used, strict=False):
            row[n:] = NO_PAGE
        shape = (batch * columns + 2, PAGE)
    elif case.place == "index":
        tables["cache_batch_idx"] = torch.randperm(batch + 2)[:batch].int()
        shape = (batch + 2, room)
    else:
        shape = (batch, room)
    arrays = {}
    for name, x in whole.items():
        fill = 77 if x.dtype == torch.int8 else float("nan")
        local = torch.full((*shape, *x.shape[2:]), fill).to(x.dtype)
        flat = local.view(torch.uint8) if x.dtype in FORMATS.values() else local
        given = x.view(torch.uint8) if x.dtype in FORMATS.values() else x
        for b, m in enumerate(mine):
            old = m[m < case.lengths[b]]
            at = torch.arange(len(old))
            if case.place == "paged":
                flat[tables["block_table"][b, at // PAGE].long(), at % PAGE] = given[b, old]
            else:
                flat[int(tables["cache_batch_idx"][b]) if tables else b, at] = given[b, old]
        arrays[name] = local
    return Local(arrays, mine, tables), size


def run(group: Any, case: Case) -> tuple[str, list[str], int]:
    """(digest of the results, what is wrong, bytes sent)."""
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    dtype, batch = DTYPES[case.dtype], len(case.lengths)
    (heads, heads_k), dim = case.heads, case.dim
    ends = [n + case.new * case.calls for n in case.lengths]
    usual = 1 / 32 if case.format == "int8" else 1.0
    whole = {f"{x}_cache": torch.randn(batch, max(ends), heads_k, dim) for x in "kv"}
    whole = {x: (y / usual).clamp(-127, 127).round() if case.format == "int8" else y for x, y in whole.items()}
    whole = {x: y.to(FORMATS.get(case.format, dtype)) for x, y in whole.items()}
    named: dict[str, Any] = {"softcap": case.softcap, "causal": case.causal, "window_size": case.window, **case.options}
    if case.scales == "number":
        named |= {"k_scale": 0.75 * usual, "v_scale": 1.25 * usual}
    if case.scales == "array":
        whole |= {f"{x}_scale": (torch.rand(batch, max(ends), heads_k) + 0.1) * usual for x in "kv"}
    if case.sinks:
        named["s_aux"] = torch.randn(heads).to(dtype) + 1
    if case.alibi:
        named["alibi_slopes"] = 2.0 ** -torch.arange(1.0, heads + 1)
    if case.rotary:
        angles = torch.outer(torch.arange(max(ends) + case.rows), 1e4 ** -(torch.arange(16) / 16))
        named |= {"rotary_cos": angles.cos().to(dtype), "rotary_sin": angles.sin().to(dtype)}
        named["rotary_interleaved"] = case.rotary == "pairs"
    if case.score_mod:
        named["score_mod"] = case.score_mod
    here, size = local_cache(case, whole, ends, world, rank)
    dealt = {"owners": case.owners, ("page" if case.owners == "pages" else "room"): size}
    before = {x: y.clone() for x, y in here.arrays.items()}
    errors, digest, sent = [], hashlib.sha256(), 0
    for call in range(case.calls):
        q, k, v = (torch.randn(batch, n, h, dim).to(dtype) for n, h in ((case.rows, heads), *[(case.new, heads_k)] * 2))
        new = {"k": k, "v": v} if case.new else {}
        starts = [n + call * case.new for n in case.lengths]
        lengths = starts[0] if case.as_int else torch.tensor(starts, dtype=torch.int32)
        bytes_before = traffic.bytes
        out, lse = context_parallel_with_kvcache(
            q, **here.arrays, **here.tables, **new, **named, **dealt, cache_seqlens=lengths, group=group,
            return_softmax_lse=True,
        )  # fmt: skip
        sent += traffic.bytes - bytes_before
        of_one = {"return_softmax_lse": True, "cache_seqlens": torch.tensor(starts, dtype=torch.int32)}
        one, one_lse = xeflash.flash_attn_with_kvcache(q, **whole, **new, **named, **of_one)
        digest.update(out.view(torch.uint8).numpy().tobytes() + lse.numpy().tobytes())
        now = [n + case.new for n in starts]
        errors += judge(case, q, whole, named, now, out, lse, one)
    got = local_lengths(torch.tensor(ends, dtype=torch.int32), rank=rank, group=group, **dealt).tolist()
    if got != [len(m) for m in here.mine]:
        errors.append(f"rank {rank}: local_lengths gave {got}")
    errors += check_rows(case, here, before, whole, rank)
    return digest.hexdigest(), errors, sent


def as_bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8).flatten(2)


def check_rows(case: Case, here: Local, before: dict[str, torch.Tensor], whole: dict[str, Any], rank: int) -> list[str]:
    """The rank's rows are those of one process, and nothing else was written."""
    errors = []
    for name, x in here.arrays.items():
        for b, mine in enumerate(here.mine):
            got, want = here.rows(name, b, len(mine)), whole[name][b, mine]
            if case.rotary and name == "k_cache":  # ours rotates without the kernel's fused products
                step = torch.finfo(want.dtype).eps * 8
                worst = (got.float() - want.float()).abs().max() if len(mine) else 0
                if not worst <= step:
                    errors.append(f"rank {rank}: {name} of sequence {b} is {worst} away")
            elif not torch.equal(as_bits(got[None]), as_bits(want[None])):
                errors.append(f"rank {rank}: {name} of sequence {b} has other rows than one process")
        changed = (as_bits(x) != as_bits(before[name])).any(-1).sum()
        most = sum(int((m >= n).sum()) for m, n in zip(here.mine, case.lengths, strict=False))
        if changed > most:
            errors.append(f"rank {rank}: {changed} rows of {name} changed, {most} are new")
    return errors


def judge(
    case: Case,
    q: torch.Tensor,
    whole: dict[str, Any],
    named: dict[str, Any],
    now: list[int],
    out: Any,
    lse: Any,
    one: Any,
) -> list[str]:
    """What is beyond its limit of the reference in float64, of results that one process's call does not have."""
    found = []
    if named.get("rotary_cos") is not None:
        far = float((out.float() - one.float()).abs().max())
        limit = {"fp32": 1e-5, "fp16": 4e-3, "bf16": 3e-2}[case.dtype]
        return [] if far <= limit else [f"out is {far} from that of one process"]
    left, right = case.window
    f = Features(
        window=(left, 0 if case.causal else right), softcap=case.softcap, sinks=named.get("s_aux"),
        alibi=named.get("alibi_slopes"), score_mod=MODS[case.score_mod] if case.score_mod else None,
    )  # fmt: skip
    for b, n in enumerate(now):
        k, v = (whole[f"{x}_cache"][b : b + 1, :n].float().numpy().astype("float64") for x in "kv")
        factors = [named.get(f"{x}_scale", whole.get(f"{x}_scale", 1.0)) for x in "kv"]
        k, v = (
            x * (to_float64(s[b : b + 1, :n])[..., None] if isinstance(s, torch.Tensor) else s)
            for x, s in zip((k, v), factors, strict=False)
        )
        qkv = tuple(x.swapaxes(1, 2) for x in (to_float64(q[b : b + 1]), k, v))
        got = to_float64(out[b : b + 1]).swapaxes(1, 2), to_float64(lse[b : b + 1])
        found += [str(x) for x in by_rule(f"sequence {b} ", dtype_name(q), qkv, f, *got) if not x.ok]
    return found


def _near(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s - 0.02 * abs(i - j) * (h + 1)


def _by_head(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    return s * (1 + 0.5 * h)


MODS = {"s - 0.02 * abs(q_idx - k_idx) * (h + 1)": _near, "s * (1 + 0.5 * h)": _by_head}
