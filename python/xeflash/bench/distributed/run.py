"""Runs the cases on all ranks in step: check and count first, then interleaved rounds, then memory."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from xeflash.bench import memory, runner
from xeflash.bench.check import Errors, largest_error
from xeflash.bench.distributed.ranks import Rank
from xeflash.bench.distributed.rows import ONE, TORCH_NAMES, DistributedCase, DistributedRow
from xeflash.bench.environ import available_memory, too_large
from xeflash.bench.forms import TORCH_DTYPES, synchronizer
from xeflash.bench.plot import bars, panels, quartiles, with_legend
from xeflash.bench.rows import Result, case_of, times_of
from xeflash.bench.stats import summarize
from xeflash.bench.timing import in_turns, settle
from xeflash.distributed.cost import WAYS, Cost, cost
from xeflash.distributed.transport import traffic

METHOD = [
    "forward pass and gradients of q, k and v, normal numbers; every rank has its shard; wall time of the slowest "
    "rank, medians (minimum, interquartile range) in ms; rounds are interleaved in rotating order, and all ranks wait "
    "for each other before a sample",
    "one process: rank 0 computes all of it with the threads of one rank, while the others wait; speed: the median "
    "over rounds of its time / the way's",
    "ranks of one machine without devices of their own share its cores, its memory and its caches, and messages cost "
    "copies by the same cores: bytes, memory and waiting say more there than times",
    "bytes and messages: counted where they are sent, on the rank that has most; formula: xeflash.distributed.cost",
    "waited: how long a rank stood still for what others send, mean over ranks, median over rounds; it includes their "
    "being late",
    "error against one process in fp32: at most 2 x that of one process in the same dtype + the rounding of the "
    "largest result (32 roundings in fp32, where the order of sums differs); of out, dq, dk and dv the worst one",
    "memory: the most bytes that torch's allocator has given out during both passes, above the inputs, results "
    "included; RSS: the largest growth of the process (CPU), with the scratch of libraries",
]


@dataclass(frozen=True)
class Options:
    """The ways that are measured, and how often."""

    ways: tuple[str, ...]
    rounds: int = 5
    seed: int = 0
    compare: bool = True


Tensors = tuple[Tensor, Tensor, Tensor, Tensor]  # q, k, v and the gradient of out
Form = Callable[[], Tensor]


@dataclass
class Sample:
    """Seconds of one step, and what was sent in it."""

    forward: float
    backward: float
    waited: float
    sent: tuple[int, int]
    messages: int


def run(cases: Sequence[DistributedCase], options: Options, rank: Rank) -> Iterator[Result]:
    """Yields the results one by one, on every rank alike."""
    for case in cases:
        free = available_memory(rank.device)
        note = too_large(case.memory_bytes(rank.world), free) if rank.device == "cpu" else ""
        if rank.told([float(bool(note))])[0]:  # rank 0's view: all have to take the same turn
            names = [ONE] * options.compare + list(options.ways)
            yield from (Result(_row(case, rank, name, status="skipped", note=note)) for name in names)
            continue
        yield from _run_case(case, options, rank)


def _run_case(case: DistributedCase, options: Options, rank: Rank) -> Iterator[Result]:
    whole = _inputs(case, rank, options.seed)
    costs = {way: cost(*case.shapes(rank.world), TORCH_NAMES[case.dtype], rank.world, way) for way in options.ways}
    ways = [way for way in options.ways if not costs[way].refused]
    steps = {way: _Step(_way(case, way), _shards(case, whole), rank) for way in ways}
    for step in steps.values():
        step()  # compiles, and allocates what stays
    errors, counted = {}, {}
    one = _Step(_one(case), whole, rank, alone=True) if options.compare else None
    want = _exact(case, whole, rank) if options.compare else None
    base = one.results() if one is not None else None
    for way, step in steps.items():
        got = [_unsharded(case, x) for x in step.results()]
        errors[way] = _worst(got, want, base)
        counted[way] = rank.gathered(torch.tensor([*step.last.sent, step.last.messages])).amax(0).long().tolist()
    del whole, want, base
    verdicts = {way: Errors(*rank.told(list(errors[way]))) for way in ways} if options.compare else {}
    samples = _rounds({ONE: one, **steps} if one is not None else dict(steps), options.rounds, rank)
    if one is not None:
        yield _result(_row(case, rank, ONE), one, samples[ONE], rank)
        del one
    for way in options.ways:
        if way not in steps:
            yield Result(_row(case, rank, way, status="skipped", note=costs[way].refused))
            continue
        row = runner.judged(_with_costs(_row(case, rank, way), costs[way], counted[way]), verdicts.get(way))
        yield _result(row, steps.pop(way), samples[way], rank)


def _inputs(case: DistributedCase, rank: Rank, seed: int) -> Tensors:
    """Returns q, k, v and dout of the whole sequence, the same on all ranks."""
    generator = torch.Generator().manual_seed(seed)
    of_q, of_k = case.shapes()
    shapes = (of_q, of_k, of_k, of_q)
    q, k, v, dout = (
        torch.randn(shape, generator=generator).to(rank.device, TORCH_DTYPES[case.dtype]) for shape in shapes
    )
    return q, k, v, dout


def _shards(case: DistributedCase, whole: Tensors) -> Tensors:
    from xeflash.distributed import shard

    q, k, v, dout = (shard(x, shards=case.shards).contiguous() for x in whole)
    return q, k, v, dout


def _unsharded(case: DistributedCase, x: Tensor) -> Tensor:
    from xeflash.distributed import unshard

    result: Tensor = unshard(x, shards=case.shards)
    return result


def _way(case: DistributedCase, way: str) -> Callable[..., Tensor]:
    from xeflash.distributed import context_parallel_attn_func

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = context_parallel_attn_func(q, k, v, causal=case.causal, shards=case.shards, how=way)
        return out

    return call


def _one(case: DistributedCase) -> Callable[..., Tensor]:
    import xeflash

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out: Tensor = xeflash.flash_attn_func(q, k, v, causal=case.causal)
        return out

    return call


class _Step:
    """Both passes of one form; one process runs on rank 0 alone."""

    def __init__(self, call: Callable[..., Tensor], inputs: Tensors, rank: Rank, alone: bool = False) -> None:
        self.call, self.rank, self.idle = call, rank, alone and not rank.first
        self.inputs = [] if self.idle else [x.detach().requires_grad_() for x in inputs[:3]]
        self.dout = None if self.idle else inputs[3]
        self.last = Sample(0.0, 0.0, 0.0, (0, 0), 0)
        self.synchronize = synchronizer(rank.device)

    def __call__(self) -> None:
        """Runs once, into `last`; idle ranks do nothing."""
        if not self.idle:
            self.results()

    def results(self) -> list[Tensor]:
        """Runs once; returns out, dq, dk and dv, and nothing on an idle rank."""
        if self.idle:
            return []
        traffic.bytes = traffic.messages = 0
        traffic.seconds_waited = 0.0
        self.synchronize()
        begin = time.perf_counter()
        out = self.call(*self.inputs)
        self.synchronize()
        middle, sent = time.perf_counter(), traffic.bytes
        grads = torch.autograd.grad(out, self.inputs, self.dout)
        self.synchronize()
        self.last = Sample(
            middle - begin,
            time.perf_counter() - middle,
            traffic.seconds_waited,
            (sent, traffic.bytes - sent),
            traffic.messages,
        )
        return [out.detach(), *grads]


def _exact(case: DistributedCase, whole: Tensors, rank: Rank) -> list[Tensor]:
    """Returns the results of one process in fp32, on rank 0."""
    q, k, v, dout = (x.float() for x in whole) if rank.first else whole
    return _Step(_one(case), (q, k, v, dout), rank, alone=True).results()


def _worst(got: Sequence[Tensor], want: Sequence[Tensor] | None, base: Sequence[Tensor] | None) -> tuple[float, float]:
    """Returns the error that is nearest to its bound, and that bound; 0 where there is nothing to compare."""
    found = [(0.0, 0.0)]
    for mine, exact, one in zip(got, want or (), base or (), strict=False):
        largest, info = float(exact.abs().max()), torch.finfo(mine.dtype)
        roundings = 32 if mine.dtype == torch.float32 else 1
        found.append((largest_error(mine, exact), 2 * largest_error(one, exact) + roundings * info.eps * largest))
    return max(found, key=lambda pair: (not pair[0] <= pair[1], pair[0] / (pair[1] or 1.0)))


def _rounds(steps: Mapping[str, _Step], rounds: int, rank: Rank) -> dict[str, Tensor]:
    """Returns (rounds, 3) of each form: ms of both passes on the slowest rank, and of the mean rank's waiting."""
    mine: dict[str, list[list[float]]] = {name: [] for name in steps}
    for name in in_turns(list(steps), rounds):
        settle()
        dist.barrier()
        steps[name]()
        last = steps[name].last
        mine[name].append([last.forward, last.backward, last.waited])
    found = {}
    for name, series in mine.items():
        times = 1e3 * rank.gathered(torch.tensor(series))  # (ranks, rounds, 3)
        slowest = times[..., :2].sum(-1).argmax(0)
        passes = times[slowest, torch.arange(rounds), :2]
        found[name] = torch.cat([passes, times[..., 2].mean(0)[:, None]], -1)
    return found


def _row(case: DistributedCase, rank: Rank, way: str, **fields: Any) -> DistributedRow:
    return DistributedRow(**dataclasses.asdict(case), ranks=1 if way == ONE else rank.world, way=way, **fields)


def _with_costs(row: DistributedRow, each: Cost, counted: Sequence[int]) -> DistributedRow:
    return dataclasses.replace(
        row,
        forward_bytes=counted[0],
        forward_bytes_formula=each.bytes_forward,
        backward_bytes=counted[1],
        backward_bytes_formula=each.bytes_backward,
        messages=counted[2],
        messages_formula=each.messages,
        peak_bytes_formula=each.memory,
    )


def _memory(step: _Step, rank: Rank) -> tuple[int, int | None]:
    """Returns the allocator's peak and the growth of the process, of the rank that has most."""
    dist.barrier()
    peak = 0 if step.idle else memory.peak_of(step.results, rank.device)
    dist.barrier()
    growth = memory.rss_growth_of(step.results) if rank.device == "cpu" and not step.idle else None
    most = rank.gathered(torch.tensor([float(peak), -1.0 if growth is None else float(growth)])).amax(0)
    return int(most[0]), None if most[1] < 0 else int(most[1])


def _result(row: DistributedRow, step: _Step, samples: Tensor, rank: Rank) -> Result:
    """Returns the row with its times and its memory; a row that failed has them, too."""
    both = samples[:, :2].sum(-1).tolist()
    forward, backward, waited = (summarize(column).median for column in samples.T.tolist())
    peak, growth = _memory(step, rank)
    return Result(row, {row.way: tuple(both)}).with_row(
        rounds=len(both),
        **times_of(both),
        forward_ms=forward,
        backward_ms=backward,
        waited_ms=waited,
        peak_bytes=peak,
        rss_growth_bytes=growth,
    )


def header(rank: Rank) -> dict[str, object]:
    """Returns the block above the rows: environment, method."""
    return runner.header(rank.device, METHOD, ranks=rank.world, backend=str(dist.get_backend()))


def figure(results: Sequence[Result], title: str) -> Any:
    """Returns the picture as matplotlib's Figure: time, bytes sent and memory of each way, a panel for each."""
    results = [result for result in results if result.row.status == "ok"]
    ways = [name for name in (ONE, *WAYS) if any(result.row.way == name for result in results)]
    cases = list(dict.fromkeys(case_of(DistributedCase, result.row) for result in results))
    ranks = max((result.row.ranks for result in results), default=0)
    figure, axes = panels(3 if results else 0, title)
    colors = {name: f"C{i}" for i, name in enumerate((ONE, *WAYS))}
    contents: tuple[tuple[str, str, Callable[[Result], Sequence[float]]], ...] = (
        (f"forward and backward pass on {ranks} ranks: median and quartiles", "ms",
         lambda x: quartiles(x.samples_ms[x.row.way])),
        ("what a rank sends in both passes, counted", "MB",
         lambda x: [1e-6 * (x.row.forward_bytes + x.row.backward_bytes)] if x.row.way != ONE else []),
        ("peak memory of a rank, above its inputs", "MB", lambda x: [1e-6 * x.row.peak_bytes]),
    )  # fmt: skip
    for axis, (what, unit, height) in zip(axes, contents, strict=True):
        mine = {way: [result for result in results if result.row.way == way and height(result)] for way in ways}
        heights = {way: {cases.index(case_of(DistributedCase, x.row)): height(x) for x in mine[way]} for way in ways}
        bars(axis, {way: found for way, found in heights.items() if found}, list(map(_tick, cases)), colors)
        axis.set_title(what)
        axis.set_ylabel(unit)
    return with_legend(figure)


def _tick(case: DistributedCase) -> str:
    mask = "" if case.causal else ", full"
    return f"{case.dtype}, {case.seq} tokens\n{case.heads}/{case.kv_heads} heads of {case.head_dim}{mask}"
