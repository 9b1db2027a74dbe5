"""torch's context parallel with our attention: its context manager, modules that follow it, and what is torch's own."""

import pytest
import ranks
import torch
import torch.distributed as dist
import torch.nn.functional as F
import xeflash
from torch.distributed.device_mesh import DeviceMesh
from xeflash.integrations import torch_sdpa

experimental = pytest.importorskip("torch.distributed.tensor.experimental._attention")


def mesh_of(group):
    return DeviceMesh.from_group(group or dist.group.WORLD, "cpu", mesh_dim_names=("cp",))


def inputs(world, heads_k=4, rows=24, dtype=torch.float32):
    """q, k, v and a gradient of the output, the same on all ranks."""
    shapes = ((2, 4), (2, heads_k), (2, heads_k), (2, 4))
    torch.manual_seed(3)
    return [torch.randn(*shape, rows * world, 64).to(dtype) for shape in shapes]


def alone(tensors, **options):
    """In float64: the output and gradients of one process."""
    *leaves, dout = (x.double().requires_grad_(i < 3) for i, x in enumerate(tensors))
    out = F.scaled_dot_product_attention(*leaves, **options)
    return [out.detach(), *torch.autograd.grad(out, leaves, dout)]


def check(got, want, limit=2e-6):
    for name, x, y in zip(("out", "dq", "dk", "dv"), got, want, strict=True):
        error = float((x.double() - y).abs().max() / y.abs().max())
        assert error < limit, f"{name}: {error}"


def within(group, balanced, options, heads_k=4, dtype=torch.float32):
    """torch's context manager, which deals tensors in place and replaces F.scaled_dot_product_attention."""
    mesh = mesh_of(group)
    tensors = inputs(mesh.size(), heads_k, dtype=dtype)
    want = alone(tensors, **options)
    experimental._cp_options.enable_load_balance, before = balanced, experimental._cp_options.enable_load_balance
    calls = torch_sdpa.calls()
    try:
        with (
            torch_sdpa.use_xeflash(),
            experimental.context_parallel(
                mesh, buffers=tensors, buffer_seq_dims=[2] * 4, no_restore_buffers=set(tensors)
            ),
        ):
            assert tensors[0].shape[2] == 24
            leaves = [x.requires_grad_() for x in tensors[:3]]
            with torch.enable_grad():
                out = F.scaled_dot_product_attention(*leaves, **options)
                with torch.no_grad():
                    assert torch.equal(F.scaled_dot_product_attention(*leaves, **options), out)
            got = [out.detach(), *torch.autograd.grad(out, leaves, tensors[3])]
            got = experimental.context_parallel_unshard(mesh, got, [2] * 4)
    finally:
        experimental._cp_options.enable_load_balance = before
    after = torch_sdpa.calls()
    assert (after.xeflash - calls.xeflash, after.torch - calls.torch) == (2, 0)
    check(got, want, 2e-6 if dtype is torch.float32 else 2e-2)


CAUSAL = {"is_causal": True}
CASES = {
    "causal": (True, CAUSAL),
    "causal-unbalanced": (False, CAUSAL),
    "full": (False, {}),
    "full-balanced": (True, {"scale": 0.3}),  # torch's own refuses it; the order of rows changes nothing
    "gqa": (True, {**CAUSAL, "enable_gqa": True}, 2),
    "bf16": (True, CAUSAL, 4, torch.bfloat16),
}


@pytest.mark.parametrize("case", CASES)
def test_in_torchs_context_manager(case):
    ranks.run(within, *CASES[case], world=2)


def test_of_three_ranks():
    ranks.run(within, True, CAUSAL, world=3)


class Attention(torch.nn.Module):
    def forward(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


def by_modules(group, balanced):
    """The way that follows it: a program deals its tensors, and modules make DTensors of them."""
    mesh = mesh_of(group)
    tensors = inputs(mesh.size())
    want = alone(tensors, is_causal=True)
    options = experimental._cp_options.enable_load_balance
    balancer = experimental._HeadTailLoadBalancer(48, 2, "cpu") if balanced else None
    dims = [2] * 4
    mine = experimental._context_parallel_shard(mesh, tensors, dims, load_balancer=balancer)
    style = experimental._ContextParallel(2, experimental._ContextParallel.AttentionType.SDPA)
    module = torch.distributed.tensor.parallel.parallelize_module(Attention(), mesh, style)
    experimental._enable_context_parallel_dispatcher()
    try:
        with torch_sdpa.use_xeflash():
            leaves = [x.detach().requires_grad_() for x in mine[:3]]
            out = module(*leaves)
    finally:
        experimental._disable_context_parallel_dispatcher()
    got = [out.detach(), *torch.autograd.grad(out, leaves, mine[3])]  # outside: nothing of torch is needed any more
    whole = experimental.context_parallel_unshard(mesh, got, dims, balancer)
    experimental._cp_options.enable_load_balance = options
    check(whole, want)


@pytest.mark.parametrize("balanced", [True, False])
def test_by_modules(balanced):
    ranks.run(by_modules, balanced, world=2)


def others(group):
    """DTensors that are none of context parallel's."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    mesh = mesh_of(group)
    q, k, v, _ = inputs(mesh.size())
    want = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    before = torch_sdpa.calls()
    with torch_sdpa.use_xeflash():
        for placement in (Replicate(), Shard(0), Shard(1), Shard(2)):
            given = [torch.distributed.tensor.distribute_tensor(x, mesh, [placement]) for x in (q, k, v)]
            try:
                out = F.scaled_dot_product_attention(*given, is_causal=True)
            except (NotImplementedError, RuntimeError) as error:  # torch says what it does not have
                assert "sharding strategy" in str(error), error
            else:
                assert type(out) is DTensor
                torch.testing.assert_close(out.full_tensor(), want)
        experimental._enable_context_parallel_dispatcher()
        try:
            given = [DTensor.from_local(x, mesh, [Replicate()], run_check=False) for x in (q, k, v)]
            try:
                out = F.scaled_dot_product_attention(*given, is_causal=True)
            except (NotImplementedError, RuntimeError) as error:
                assert "sharding strategy" in str(error), error
            else:
                torch.testing.assert_close(out.full_tensor(), want)
        finally:
            experimental._disable_context_parallel_dispatcher()
    assert torch_sdpa.calls().xeflash == before.xeflash


def test_other_dtensors_are_torchs():
    ranks.run(others, world=2)


def refused(group):
    mesh = mesh_of(group)
    q, k, v, _ = inputs(mesh.size())
    mask = torch.ones(2, 1, 24, 48, dtype=torch.bool)
    context = experimental.context_parallel(
        mesh, buffers=[q, k, v], buffer_seq_dims=[2] * 3, no_restore_buffers={q, k, v}
    )
    with context, torch_sdpa.use_xeflash(), pytest.raises(NotImplementedError) as caught:
        F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return str(caught.value)


def test_masks_are_refused_by_name():
    assert ranks.run(refused, world=2)[0] == (
        "scaled_dot_product_attention: attn_mask must be None where torch's context parallel has dealt the rows of query, "
        "got one of [2, 1, 48, 48]"
    )


def drops(group):
    """Dropout draws what one process draws from rank 0's numbers, whose own are in the global order of rows."""
    mesh = mesh_of(group)
    q, k, v, _ = inputs(mesh.size(), rows=32)
    torch.manual_seed(5)
    with torch.no_grad():
        want = xeflash.attention(q, k, v, None, 0.25, True)
    context = experimental.context_parallel(
        mesh, buffers=[q, k, v], buffer_seq_dims=[2] * 3, no_restore_buffers={q, k, v}
    )
    torch.manual_seed(5)
    with context, torch_sdpa.use_xeflash():
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.25)
        (got,) = experimental.context_parallel_unshard(mesh, [out], [2])
    torch.testing.assert_close(got, want, atol=2e-6, rtol=1e-5)


def test_dropout_is_that_of_one_process():
    ranks.run(drops, world=2)
