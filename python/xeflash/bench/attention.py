"""The benchmark of attention: its rows and tables, and the problem of a case."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from xeflash.bench import check as checking
from xeflash.bench import forms, shares
from xeflash.bench.cases import ON_CACHE, PHASES, Case
from xeflash.bench.environ import available_memory, too_large
from xeflash.bench.numbers import device_share, number, ratio, size, whole
from xeflash.bench.plot import Picture
from xeflash.bench.rows import OURS, Compared
from xeflash.bench.runner import Benchmark, Call, Options, Problem
from xeflash.bench.tables import NONE, comparison

METHOD = [
    "K and V are warm in the cache where they fit; GFLOP/s count a causal triangle as half; GB/s count K and V once",
    "threads: of the launch that scores, CPUs: work-items; of device: of the threads that it holds, CPUs: 4 a core; "
    "partial: memory in which splits of the keys leave results for the launch that merges them",
    "backward: the gradients of q, k and v by torch.autograd.grad, after one forward pass whose graph is kept; counted "
    "as 5 products of matrices, 2.5 times those of a forward pass",
    "train: a forward pass and these gradients; counted as 7 products; eager: softmax(Q K^T) V with all scores in "
    "memory, which is not timed",
    "blocks: each row of blocks lists the same number of key blocks, drawn at random, the same ones for all heads; "
    "GFLOP/s count listed blocks only",
    "verify: flash_attn_with_kvcache with a random tree as its mask, in words; parents are drawn of the nodes before; "
    "GFLOP/s count all keys for every node",
    "cache: flash_attn_with_kvcache, on what it has appended; torch has the same numbers in the type of the queries",
    checking.METHOD,
]
TILES_FROM = "tiles from"
_EAGER_BYTES = 16  # for each score of a training step with eager attention: 12.6 of long sequences, in fp32


@dataclass(frozen=True)
class Row(Compared, Case):
    """A case and what was measured of it.

    `threads` are those of the kernel that scores, `percent_of_device` what they are of the threads that the device
    holds; `partial_bytes` is what splits of the keys leave to be merged. Rows of gradients do not have them.
    `tiles_from` are the levels that chose the tiles of its kernels, as tune.level_of names them. `untuned_median_ms`
    is the time with the tables' choices, which the ratios then compare with; `causal_median_ms` is that of our causal
    call of as many queries, beside a tree, and `causal_ratio` it / our time.
    """

    threads: int | None = None
    percent_of_device: float | None = None
    splits: int | None = None
    partial_bytes: int | None = None
    tiles_from: str | None = None
    untuned_median_ms: float | None = None
    causal_median_ms: float | None = None
    causal_ratio: float | None = None

    @property
    def section(self) -> str:
        """Returns the table that this row is in."""
        return self.phase


def _unless_cached(text: Callable[[Row], str]) -> Callable[[Row], str]:
    return lambda row: NONE if row.phase in ON_CACHE else text(row)


def _if_cached(text: Callable[[Row], str]) -> Callable[[Row], str]:
    return lambda row: text(row) if row.phase in ON_CACHE else NONE


LAYOUT = comparison(
    Row,
    PHASES,
    {
        "dtype": lambda r: r.dtype,
        "B": lambda r: str(r.batch),
        "Hq/Hkv": lambda r: f"{r.heads}/{r.kv_heads}",
        "D": lambda r: str(r.head_dim),
        "S": _unless_cached(lambda r: str(r.seq_q) if r.seq_q == r.seq_k else f"{r.seq_q} x {r.seq_k}"),
        "causal": _unless_cached(lambda r: "yes" if r.causal else "no"),
        "block": lambda r: NONE if r.share is None else str(r.block_size),
        "density": lambda r: NONE if r.share is None else number(r.listed),
        "nodes": lambda r: str(r.seq_q) if r.phase == "verify" else NONE,
        "KV": _if_cached(lambda r: str(r.seq_k)),
        "cache": lambda r: r.kv_dtype or NONE,
        "bytes": lambda r: size(r.kv_bytes) if r.kv_dtype else NONE,
    },
    {
        "untuned ms": lambda r: number(r.untuned_median_ms),
        "causal ms": lambda r: number(r.causal_median_ms),
        "causal / ours": lambda r: ratio(r.causal_ratio),
        "GFLOP/s": _unless_cached(lambda r: number(r.gflops)),
        "GB/s of KV": _if_cached(lambda r: number(r.gbytes_per_s)),
    },
    {
        "threads": lambda r: whole(r.threads),
        "of device": lambda r: device_share(r.percent_of_device),
        "splits": lambda r: whole(r.splits),
        "partial": lambda r: size(r.partial_bytes),
        TILES_FROM: lambda r: r.tiles_from or NONE,
        "note": lambda r: r.note or NONE,
    },
    {
        "density": "the share of key blocks that each row of blocks lists",
        "cache": "the type of K and V: fp8 is e4m3, k8v4 has K in int8 and V in 4 bits",
        "bytes": "of K and V with their scales",
        "threads": "of the launch that scores",
        "of device": "of the threads that it holds (a CPU: 4 work-items a core)",
        "splits": "of the keys",
        "partial": "memory of their results",
        TILES_FROM: "the file of `xeflash tune`, the package's file of this device or of its architecture, or a table",
        "causal ms": "our causal call of as many queries on the same cache",
        "causal / ours": "the ratio of the medians",
    },
)


def _problem(case: Case, options: Options) -> Problem:
    inputs = forms.make_inputs(case, options.device, options.seed)
    ours = forms.timed_form(case, inputs, forms.our_form(case, inputs))
    torchs = {name: forms.timed_form(case, inputs, form) for name, form in forms.torch_forms(case, inputs).items()}
    if case.share is not None:
        torchs[forms.FLEX] = forms.flex_form(case, inputs)
    plain, shared = next(iter(torchs.values())), shares.shares_here(case, options.device)
    kernels = shared.kernels
    if case.phase == "train":
        kernels += shares.shares_here(dataclasses.replace(case, phase="prefill"), options.device).kernels
    return Problem(
        calls={OURS: ours, **(torchs if options.compare_torch else {})},
        check=lambda: checking.check(case, inputs, ours, plain),
        flops=case.flops,
        bytes_read=case.kv_bytes,
        optional={forms.FLEX: "torch's flex_attention"},
        memory=case.phase == "train",
        eager=_eager(case, inputs, options),
        fields={"tiles_from": shares.levels_of(kernels), **({} if case.gradients else shares.fields_of(shared))},
    )


def _eager(case: Case, inputs: forms.Inputs, options: Options) -> Call | None:
    """Returns a training step with all scores in memory, if they fit there."""
    scores = case.batch * case.heads * case.seq_q * case.seq_k
    if case.phase != "train" or too_large(_EAGER_BYTES * scores, available_memory(options.device)):
        return None
    return forms.timed_form(case, inputs, forms.eager_form(case, inputs))


BENCHMARK = Benchmark(
    layout=LAYOUT,
    title="xeflash and torch SDPA on {}: median and quartiles",
    method=METHOD,
    algorithm=lambda case: case.algorithm,
    memory_needed=lambda case: case.memory_bytes,
    problem=_problem,
    notes=forms.FORM_NOTES,
    picture=Picture(
        panel=lambda row: (
            f"{row.phase}{f' of {row.seq_q} nodes' * (row.phase == 'verify')} {row.dtype}"
            f"{f', density {number(row.listed)}' * (row.share is not None)}"
            f"{f', cache {row.kv_dtype}' * bool(row.kv_dtype)}"
        ),
        ticks={
            "batch": lambda row: str(row.batch),
            "query heads": lambda row: str(row.heads),
            "KV heads": lambda row: str(row.kv_heads),
            "head dim": lambda row: str(row.head_dim),
            "keys": lambda row: str(row.seq_k) if row.seq_k % 1024 else f"{row.seq_k // 1024}k",
        },
        reads=lambda row: "K and V" if row.phase in ON_CACHE else "",
    ),
)
