"""Cost of a call of each function on the way to the kernel, by each way there is: a markdown table.

    python perf/call_cost.py [--repeats 15] [--number 2000]

Microseconds, the least of the repeats, which take turns. Queries of no rows: everything but the launch, with the
allocation of the result, as `torch.empty_like` has it, in time of the calling thread; and queries of one row, which are
launched and waited for.
"""

from __future__ import annotations

import argparse
import contextlib
import time
import timeit
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
import xeflash
from xeflash.integrations import torch_sdpa
from xeflash.torch_ops.attention import operators
from xeflash.torch_ops.forms import FORMS

AUTOCAST, ROUTED = "xeflash.attention under autocast", "F.scaled_dot_product_attention routed to xeflash"
RECORDED, DIFFERENTIATED = "xeflash.flash_attn_func, requires grad", "the same and its backward pass"
CONTEXTS = {AUTOCAST: lambda: torch.autocast("cpu"), ROUTED: torch_sdpa.use_xeflash}
CONTEXTS |= {RECORDED: torch.enable_grad, DIFFERENTIATED: torch.enable_grad}
operator, varlen_operator = torch.ops.xeflash.attention, torch.ops.xeflash.flash_attn_varlen


def by_custom_op() -> Callable[..., torch.Tensor]:
    """Returns the kernel of attention behind torch.library.custom_op."""
    kernel = operators.kernel_of(FORMS[0])

    @torch.library.custom_op("xeflash_call_cost::attention", mutates_args=())
    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return kernel(query, key, value)[0]

    return attention


def directly(x: object) -> object:
    """Calls the extension alone."""
    return xeflash._core.forward(function="attention", layout=2, q=x, k=x, v=x, bottom_right=False, enable_gqa=False)


def ways(rows: int) -> dict[str, Callable[[], object]]:
    """Returns the calls to compare, on the same sizes."""
    x = torch.zeros(1, 2, rows, 64)
    a = x.numpy()
    bshd, packed, qkv = torch.zeros(1, rows, 2, 64), torch.zeros(rows, 2, 64), torch.zeros(1, rows, 3, 2, 64)
    b = bshd.numpy()
    cache, starts = torch.zeros(1, 16, 2, 64), torch.tensor([0, rows], dtype=torch.int32)
    varlen = (packed, packed, packed, starts, starts, rows, rows)
    pages = (packed, cache, cache, starts, None, rows, 16)
    words = torch.full((1, rows, 1), -1, dtype=torch.int32)
    lengths, table = torch.tensor([3], dtype=torch.int32), torch.tensor([[0]], dtype=torch.int32)
    leaf, dout = torch.zeros(1, rows, 2, 64, requires_grad=True), torch.ones(1, rows, 2, 64)
    custom_op = by_custom_op()

    return {
        "torch.empty_like": lambda: torch.empty_like(x),
        "np.empty_like": lambda: np.empty_like(a),
        "the extension, torch": lambda: directly(x),
        "the extension, numpy": lambda: directly(a),
        "xeflash.attention, torch": lambda: xeflash.attention(x, x, x),
        "xeflash.attention, numpy": lambda: xeflash.attention(a, a, a),
        "xeflash.attention, torch, three keywords": lambda: xeflash.attention(
            x, x, x, is_causal=True, scale=0.5, softcap=2.0
        ),
        "xeflash.flash_attn_func, torch": lambda: xeflash.flash_attn_func(bshd, bshd, bshd),
        "xeflash.flash_attn_func, numpy, causal": lambda: xeflash.flash_attn_func(b, b, b, causal=True),
        "xeflash.flash_attn_varlen_func, torch": lambda: xeflash.flash_attn_varlen_func(*varlen),
        "xeflash.flash_attn_with_kvcache, torch": lambda: xeflash.flash_attn_with_kvcache(bshd, cache, cache),
        "the same with a tree, in words": lambda: xeflash.flash_attn_with_kvcache(bshd, cache, cache, tree_mask=words),
        "xeflash.flash_attn_qkvpacked_func, torch": lambda: xeflash.flash_attn_qkvpacked_func(qkv),
        "the last keys of a cache, pages, window": lambda: xeflash.flash_attn_with_kvcache(
            bshd, cache, cache, cache_seqlens=lengths, block_table=table, causal=True, window_size=(5, 0)
        ),
        "packed queries on pages": lambda: xeflash.flash_attn_varlen_func(
            *pages, causal=True, block_table=table, seqused_k=lengths
        ),
        "packed queries on a cache": lambda: xeflash.flash_attn_with_kvcache(
            packed, cache, cache, cache_seqlens=lengths, cu_seqlens_q=starts, max_seqlen_q=rows, causal=True
        ),
        "window, and what flash-attn returns beside": lambda: xeflash.flash_attn_func(
            bshd, bshd, bshd, causal=True, window_size=(5, 0), return_attn_probs=True
        ),
        "xeflash.attention, three dimensions, LSE": lambda: xeflash.attention(x[0], x[0], x[0], return_lse=True),
        RECORDED: lambda: xeflash.flash_attn_func(leaf, leaf, leaf),
        DIFFERENTIATED: lambda: torch.autograd.grad(xeflash.flash_attn_func(leaf, leaf, leaf), leaf, dout),
        "torch.ops.xeflash.attention.default": lambda: operator.default(x, x, x),
        "torch.ops.xeflash.attention": lambda: operator(x, x, x),
        "torch.ops.xeflash.flash_attn_varlen": lambda: varlen_operator(*varlen),
        "the same kernel as a torch.library.custom_op": lambda: custom_op(x, x, x),
        AUTOCAST: lambda: xeflash.attention(x, x, x),
        "F.scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(x, x, x),
        ROUTED: lambda: F.scaled_dot_product_attention(x, x, x),
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--number", type=int, default=2000)
    options = parser.parse_args()
    torch.set_num_threads(1)
    columns = []
    with torch.no_grad():
        for rows, clock in ((0, time.thread_time), (1, time.perf_counter)):
            calls = ways(rows)
            timers = {name: timeit.Timer(call, timer=clock) for name, call in calls.items()}
            best = dict.fromkeys(calls, float("inf"))
            for _ in range(options.repeats):
                for name, timer in timers.items():
                    with CONTEXTS.get(name, contextlib.nullcontext)():
                        best[name] = min(best[name], timer.timeit(options.number) / options.number * 1e6)
            columns.append(best)
    print("| call | no launch, us | one row, us |\n|---|---|---|")
    for name in columns[0]:
        print(f"| {name} | {columns[0][name]:.2f} | {columns[1][name]:.2f} |")


if __name__ == "__main__":
    main()
