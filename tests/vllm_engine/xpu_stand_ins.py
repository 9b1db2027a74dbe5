"""What vLLM's engine needs on XPU besides torch, made of torch's operators, so that it runs on simulated GPUs.

    vllm_xpu_kernels      its modules are names (conftest.py); norms, rotations and activations are vLLM's native code
    Triton                slots of new tokens; ranks of log probabilities, which torch.compile would make of it
    oneCCL                gloo: one rank has nobody to send to
    torch's XPU backend   the memory of a device; a cache of host memory, which the simulated backend has not
    graphs                replays run the module again, with the metadata and inputs of the run that was recorded

The simulated backend runs all operators but ours on the CPU, where no graph records them.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from vllm.compilation.cuda_graph import CUDAGraphWrapper
from vllm.forward_context import get_forward_context, is_forward_context_available, override_forward_context
from vllm.platforms import current_platform
from vllm.triton_utils.dispatcher import register_kernels
from vllm.v1.sample import sampler
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler
from vllm.v1.worker import gpu_worker

NATIVE = {"compilation_config": {"custom_ops": ["none"]}}
NATIVE["kernel_config"] = {"ir_op_priority": {"rms_norm": ["native"], "fused_add_rms_norm": ["native"]}}

NAMES = torch.library.Library("_C", "FRAGMENT")  # a layer looks its operator up, and calls its native code
NAMES.define("silu_and_mul(Tensor! out, Tensor x) -> ()")


def slots(
    tokens, padded, starts, positions, table, stride, out, page, ranks=1, rank=0, interleave=1, empty=-1, block=0
):
    """vLLM's kernel that numbers the slots of new tokens, with its arguments."""
    assert ranks == 1
    new, place = starts.diff().long(), positions[:tokens]
    row = torch.arange(len(new), device=starts.device).repeat_interleave(new, output_size=tokens)
    out[:tokens] = table.view(-1, stride)[row, place // page].long() * page + place % page
    out[tokens:padded] = empty


def install(patch) -> SimpleNamespace:
    """Puts them in place; returns what counts replays."""
    counts = SimpleNamespace(recorded=0, replayed=0)

    def record_or_run_again(self, *given, **named):
        context = get_forward_context() if is_forward_context_available() else None
        if context is None or context.cudagraph_runtime_mode != self.runtime_mode:
            return self.runnable(*given, **named)
        known = self.concrete_cudagraph_entries
        if context.batch_descriptor not in known:
            out = self.runnable(*given, **named)
            known[context.batch_descriptor] = context, given, named, out
            counts.recorded += 1
            return out
        then, given, named, out = known[context.batch_descriptor]
        with override_forward_context(then):
            out.copy_(self.runnable(*given, **named))
        counts.replayed += 1
        return out

    patch.setattr(CUDAGraphWrapper, "__call__", record_or_run_again)
    patch.setattr(type(current_platform), "dist_backend", "gloo")
    patch.setattr(torch.accelerator, "empty_host_cache", lambda: None)
    patch.setattr(torch._C, "_accelerator_emptyHostCache", lambda: None)
    patch.setattr(torch.accelerator, "get_memory_info", lambda device=None: (8 << 30, 12 << 30))
    patch.setattr(TopKTopPSampler, "forward_xpu", TopKTopPSampler.forward_native)
    patch.setattr(sampler, "batched_count_greater_than", lambda x, values: (x >= values).sum(-1))
    patch.setattr(gpu_worker, "kernel_warmup", lambda worker: None)  # of other models' kernels, which it imports
    register_kernels({"vllm.v1.worker.block_table.ComputeSlotMappingKernel.kernel": slots})
    return counts
