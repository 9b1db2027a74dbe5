"""diffusers' Ulysses attention, whose own all-to-all surrounds scaled_dot_product_attention: ours takes its place there."""

import importlib.util

import pytest
import ranks
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from xeflash.integrations import torch_sdpa

pytestmark = pytest.mark.skipif(importlib.util.find_spec("diffusers") is None, reason="diffusers is not installed")


def attend(group):
    from diffusers.models._modeling_parallel import ContextParallelConfig, ParallelConfig
    from diffusers.models.attention_dispatch import dispatch_attention_fn

    group = group or dist.group.WORLD
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    config = ParallelConfig(context_parallel_config=ContextParallelConfig(ulysses_degree=world))
    config.context_parallel_config._ulysses_mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("ulysses",))
    torch.manual_seed(2)
    whole = [torch.randn(1, 24 * world, 4, 64) for _ in range(4)]

    def results(tensors, **more):
        leaves = [x.clone().requires_grad_() for x in tensors[:3]]
        out = dispatch_attention_fn(*leaves, backend="native", **more)
        return [out.detach(), *torch.autograd.grad(out, leaves, tensors[3])]

    want = results(whole)
    mine = [x.chunk(world, 1)[rank].contiguous() for x in whole]
    before = torch_sdpa.calls()
    torch_sdpa.enable()  # for all threads: its backward pass attends again, and on xpu in a thread of torch's own
    try:
        got = results(mine, parallel_config=config)
    finally:
        torch_sdpa.disable()
    after = torch_sdpa.calls()
    assert (after.xeflash - before.xeflash, after.torch - before.torch) == (2, 0)
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y.chunk(world, 1)[rank], atol=1e-5, rtol=1e-5)


def test_ulysses():
    ranks.run(attend, world=2)
