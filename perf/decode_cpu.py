"""One-token decode from caches of every kind on the CPU, against torch SDPA and the machine's peaks.

    python perf/decode_cpu.py                                            # the whole grid
    python perf/decode_cpu.py --dtype bf16 --kv-len 4k --batch 1 --rounds 21 --threads 2

Medians of interleaved rounds (xeflash.bench.timing). 32 query heads, head dim 128; k8v4 is K in int8 and V in 4 bits.
Ours reads (B, S, Hk, D) caches where they are; torch gets contiguous (B, H, S, D) tensors of its own, and its fastest
form counts. Every call is checked first.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
from collections.abc import Callable
from dataclasses import replace

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch is imported

import torch
import xeflash
from rich.console import Console
from rich.table import Table
from xeflash.bench import forms, kv_cache
from xeflash.bench.attention import BENCHMARK
from xeflash.bench.cases import Case, parse_choices, parse_sizes
from xeflash.bench.environ import available_memory
from xeflash.bench.limits import instruction, words
from xeflash.bench.timing import interleave

HEADS, DIM = 32, 128
KINDS = ("plain", "paged16", "paged256", "beams4", "e4m3", "int8", "k8v4")


def paged(x: torch.Tensor, page: int, places: torch.Tensor) -> torch.Tensor:
    """Puts (B, S, H, D) into pages in the order of `places`."""
    pool = torch.empty(x.shape[0] * x.shape[1] // page, page, *x.shape[2:], dtype=x.dtype)
    pool[places] = x.reshape(-1, page, *x.shape[2:])
    return pool


def our_calls(case: Case, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, Callable[[], torch.Tensor]]:
    """Returns calls on caches of every kind with q (B, 1, H, D), k and v (B, S, Hk, D)."""

    def on(*caches: torch.Tensor, **options: object) -> Callable[[], torch.Tensor]:
        call = xeflash.flash_attn_with_kvcache
        return lambda: call(q, *caches, cache_seqlens=length, **options)

    batch, length = k.shape[:2]
    calls = {"plain": on(k, v)}
    for page in (16, 256):
        places = torch.randperm(batch * length // page)
        table = places.int().view(batch, -1)
        calls[f"paged{page}"] = on(paged(k, page, places), paged(v, page, places), block_table=table)
    index = torch.arange(batch)[:, None] // 4 * 4 + torch.randint(0, min(4, batch), (batch, length))
    calls["beams4"] = on(k, v, beam_index=index.int())
    eight = (x.to(torch.float8_e4m3fn) for x in (k, v))
    calls["e4m3"] = on(*eight)
    eight = ((x.float() * 32).clamp(-127, 127).round().to(torch.int8) for x in (k, v))
    calls["int8"] = on(*eight, k_scale=1 / 32, v_scale=1 / 32)
    if case.dtype != "fp32":
        cache = kv_cache.filled(replace(case, kv_dtype="k8v4"), *(x.transpose(1, 2) for x in (q, k, v)))
        calls["k8v4"] = lambda: xeflash.flash_attn_with_kvcache(q, **cache, cache_seqlens=length)
    return calls


def measure(case: Case, rounds: int) -> dict[str, float]:
    """Returns the median ms of every call; raises an error if a result is wrong."""
    q = torch.randn(case.batch, 1, HEADS, DIM).to(forms.TORCH_DTYPES[case.dtype])
    k, v = (torch.randn(case.batch, case.seq_k, case.kv_heads, DIM).to(q.dtype) for _ in range(2))
    calls = our_calls(case, q, k, v)
    inputs = forms.Inputs(*(x.transpose(1, 2).contiguous() for x in (q, k, v)))
    torch_calls = forms.torch_forms(case, inputs)
    want = next(iter(torch_calls.values()))().float()
    for name, call in calls.items():
        error = (call().transpose(1, 2).float() - want).abs().max().item()
        loose = {"e4m3": 0.2, "int8": 0.05, "k8v4": 0.3}.get(name, 0.02)
        if name != "beams4" and error > loose:
            raise AssertionError(f"{case.label} {name}: error {error}")
    calls |= torch_calls
    return {name: 1e3 * statistics.median(times) for name, times in interleave(calls, rounds).items()}


def main() -> None:
    """Prints a row per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="fp32,bf16,fp16", help="default: %(default)s")
    parser.add_argument("--kv-len", default="1k,4k,16k", help="default: %(default)s")
    parser.add_argument("--batch", default="1,8", help="default: %(default)s")
    parser.add_argument("--kv-heads", default="32,8", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=2, help="of torch; ours takes the CPUs that it may run on")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    dtypes = parse_choices(arguments.dtype, ("fp32", "bf16", "fp16"))
    meter = BENCHMARK.meter([Case("decode", x, 1, 1, 1, DIM, 1, 1, False) for x in dtypes], "cpu")
    table = Table(title="ms; torch = its fastest form over ours on the plain cache; GB/s of the plain cache's bytes")
    for name in ("case", *KINDS, "torch", "GB/s", "% of peak", "bound by"):
        table.add_column(name, justify="left" if name == "case" else "right")
    for dtype, kv_heads, batch, length in itertools.product(
        dtypes,
        *(parse_sizes(text) for text in (arguments.kv_heads, arguments.batch, arguments.kv_len)),
    ):
        case = Case("decode", dtype, batch, HEADS, kv_heads, DIM, 1, length, False)
        free = available_memory()
        if free is not None and 6 * case.kv_bytes > free:
            table.add_row(f"{case.label}: caches of every kind need {6e-9 * case.kv_bytes:.0f} GB")
            continue
        meter.sample()
        with torch.inference_mode():
            ms = measure(case, arguments.rounds)
        fastest = min(time for name, time in ms.items() if name not in KINDS)
        rate = 1e-6 * case.kv_bytes / ms["plain"]
        by = instruction(BENCHMARK.arch_of(case, "cpu"), dtype)
        limit = meter.peaks.limit(by, case.flops, case.kv_bytes, 1e-3 * ms["plain"])
        times = (f"{ms[kind]:.3g}" if kind in ms else "-" for kind in KINDS)
        share, bound = f"{limit.percent_of_peak:.0f}", words(limit.bound_by, limit.peak)
        table.add_row(case.label, *times, f"{fastest / ms['plain']:.1f}x", f"{rate:.1f}", share, bound)
    console = Console(width=140)
    console.print(table)
    console.print(meter.peaks.named())


if __name__ == "__main__":
    main()
