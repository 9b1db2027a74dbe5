"""A case of attention on a cache that lies on all ranks, which each rank of a group runs beside one process's call."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import xeflash
from arrays import FORMATS, ArraysOf
from tolerance import by_rule
from xeflash.distributed.decode import context_parallel_with_kvcache
from xeflash.distributed.owners import local_lengths
from xeflash.distributed.transport import traffic
from xeflash.selftest.attention.drawn import Drawn, draw
from xeflash.selftest.attention.spec import Spec
from xeflash.selftest.values import Values

PAGE = 16  # of paged caches


@dataclass(frozen=True)
class Case:
    """Calls of a Spec, one behind the other, each of which appends; keys are those at the end."""

    owners: str
    page: int  # of owners="pages"
    calls: int
    spec: Spec

    def __str__(self) -> str:
        page = f" page {self.page}" if self.page != PAGE else ""
        return f"{self.owners}{page} {self.spec.name} x{self.calls}".replace(" ", "-")

    @property
    def lengths(self) -> list[int]:
        """Keys before the first call."""
        return [n - self.spec.new * self.calls for _, n in self.spec.sequences]

    def run(self, world: int) -> str:
        """A digest of the results of all ranks, which have the same."""
        import ranks

        found = ranks.run(run, self, world=world)
        assert not [x for _, errors, _ in found for x in errors], "\n".join(x for _, errors, _ in found for x in errors)
        assert len({bits for bits, _, _ in found}) == 1, "ranks have different bits"
        size = self.spec.tokens[0] * self.spec.heads[0] * (self.spec.dim * (4 if self.spec.dtype == "fp32" else 2) + 4)
        # A message of one LSE and D numbers per row, whatever the context is.
        assert {sent for _, _, sent in found} == {self.calls * (world - 1) * -(-size // 16) * 16}
        return found[0][0]


def shards(lengths: tuple[int, ...], owners: str = "pages", page: int = PAGE, calls: int = 1, **more: Any) -> Case:
    """With so many keys before the calls; causal, of one query and one new key, if nothing else is said."""
    usual = {"dtype": "fp32", "heads": (4, 2), "rows": 1, "new": 1, "window": "causal", "place": "plain"}
    more = usual | more
    keys = tuple(n + calls * more["new"] for n in lengths)
    return Case(owners, page, calls, Spec(**more, entry="kvcache", keys=keys))


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
    if case.spec.place == "paged":
        columns = room // PAGE
        pages = torch.full((batch, columns + 1), NO_PAGE, dtype=torch.int32)  # nor is there one beyond a row
        pages[:, :-1] = torch.randperm(batch * columns + 2)[: batch * columns].view(batch, columns)
        tables["block_table"] = pages[:, :-1]
        used = [-(-len(m) // PAGE) for m in mine]
        for row, n in zip(tables["block_table"], used, strict=False):
            row[n:] = NO_PAGE
        shape = (batch * columns + 2, PAGE)
    elif case.spec.place == "index":
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
            if case.spec.place == "paged":
                flat[tables["block_table"][b, at // PAGE].long(), at % PAGE] = given[b, old]
            else:
                flat[int(tables["cache_batch_idx"][b]) if tables else b, at] = given[b, old]
        arrays[name] = local
    return Local(arrays, mine, tables), size


def run(group: Any, case: Case) -> tuple[str, list[str], int]:
    """(digest of the results, what is wrong, bytes sent)."""
    rank, world, spec = dist.get_rank(group), dist.get_world_size(group), case.spec
    drawn = draw(replace(spec, place="plain", new=spec.new * case.calls))
    arrays, ends = ArraysOf(spec), [n for _, n in spec.sequences]
    put = drawn.put(arrays)
    whole = {name: x for name, x in put.items() if name in ("k_cache", "v_cache", "k_scale", "v_scale")}
    here, size = local_cache(case, whole, ends, world, rank)
    dealt = {"owners": case.owners, ("page" if case.owners == "pages" else "room"): size}
    before = {x: y.clone() for x, y in here.arrays.items()}
    errors, digest, sent = [], hashlib.sha256(), 0
    for call in range(case.calls):
        now = drawn_call(drawn, case, call, whole)
        said = now.words(now.put(arrays) | whole)
        starts = [n + call * spec.new for n in case.lengths]
        said["cache_seqlens"] = starts[0] if spec.length == "number" else torch.tensor(starts, dtype=torch.int32)
        bytes_before = traffic.bytes
        out, lse = context_parallel_with_kvcache(**said | here.arrays | here.tables | dealt, group=group)
        sent += traffic.bytes - bytes_before
        xeflash.flash_attn_with_kvcache(**said)
        digest.update(out.view(torch.uint8).numpy().tobytes() + lse.numpy().tobytes())
        errors += [str(x) for x in now.check(arrays, whole, (out, lse), by_rule) if not x.ok]
    got = local_lengths(torch.tensor(ends, dtype=torch.int32), rank=rank, group=group, **dealt).tolist()
    if got != [len(m) for m in here.mine]:
        errors.append(f"rank {rank}: local_lengths gave {got}")
    errors += check_rows(case, here, before, whole, rank)
    return digest.hexdigest(), errors, sent


def drawn_call(drawn: Drawn, case: Case, call: int, whole: dict[str, torch.Tensor]) -> Drawn:
    """What one call appends to what the calls before it have left."""
    new, values, batch = case.spec.new, dict(drawn.values), len(case.lengths)
    keys = tuple(n + new * (call + 1) for n in case.lengths)
    for name in "kv" * bool(new):
        x = values[name].bits.reshape(batch, new * case.calls, *values[name].bits.shape[1:])[:, new * call :][:, :new]
        values[name] = Values(np.ascontiguousarray(x).reshape(-1, *x.shape[2:]), values[name].dtype)
    assert drawn.cache
    before = drawn.cache.after(ArraysOf(case.spec), {name: x.clone() for name, x in whole.items()})
    places = [(i[:n], j[:n]) for (i, j), n in zip(before.places, keys, strict=True)]
    return replace(
        drawn, spec=replace(drawn.spec, keys=keys, new=new), values=values, cache=replace(before, places=places)
    )


def as_bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8).flatten(2)


def check_rows(case: Case, here: Local, before: dict[str, torch.Tensor], whole: dict[str, Any], rank: int) -> list[str]:
    """The rank's rows are those of one process, and nothing else was written."""
    errors = []
    for name, x in here.arrays.items():
        for b, mine in enumerate(here.mine):
            got, want = here.rows(name, b, len(mine)), whole[name][b, mine]
            if case.spec.rotary and name == "k_cache":  # ours rotates without the kernel's fused products
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
