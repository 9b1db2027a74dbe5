"""torch's context parallel with our attention on two ranks that have a GPU each."""

import gpu_ranks
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

pytestmark = [pytest.mark.gpu, pytest.mark.xpu]


@pytest.fixture(autouse=True)
def two(xpu):
    if torch.xpu.device_count() < gpu_ranks.WORLD:
        pytest.skip("there is one GPU, and each rank needs one of its own")


def attend(group, device):
    """The output and gradients of this rank's rows, which a DTensor of the whole says it has."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.experimental import _attention as experimental
    from xeflash.distributed import shard
    from xeflash.integrations import torch_sdpa

    group = group or dist.group.WORLD
    mesh = DeviceMesh.from_group(group, "xpu", mesh_dim_names=("cp",))
    torch.manual_seed(3)
    whole = [torch.randn(1, 2, 32, 64).bfloat16() for _ in range(4)]
    *mine, dout = (shard(x, 2, group=group).to(device) for x in whole)
    leaves = [x.requires_grad_() for x in mine]
    experimental._enable_context_parallel_dispatcher()
    try:
        with torch_sdpa.use_xeflash():
            given = [DTensor.from_local(x, mesh, [Shard(2)], run_check=False) for x in leaves]
            out = F.scaled_dot_product_attention(*given, is_causal=True).to_local()
    finally:
        experimental._disable_context_parallel_dispatcher()
    got = [out.detach(), *torch.autograd.grad(out, leaves, dout)]
    wide = [x.double().requires_grad_(i < 3) for i, x in enumerate(whole)]
    alone = F.scaled_dot_product_attention(*wide[:3], is_causal=True)
    want = [alone.detach(), *torch.autograd.grad(alone, wide[:3], wide[3])]
    errors = []
    for x, y in zip(got, want, strict=True):
        y = shard(y, 2, group=group)
        errors.append(float((x.cpu().double() - y).abs().max() / y.abs().max()))
    return errors


def test_dtensors_on_gpus():
    for errors in gpu_ranks.run(attend):
        assert max(errors) < 1e-2, errors
