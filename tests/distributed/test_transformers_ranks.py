"""Models of Transformers over ranks: context parallel by torch's context manager, tensor parallel by a plan of theirs."""

import contextlib
import os

import pytest
import ranks
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import DeviceMesh

experimental = pytest.importorskip("torch.distributed.tensor.experimental._attention")

ROWS, STEPS = 64, 2


def llama(**changes):
    from tiny_models import decoder

    return decoder("llama", **changes)


def tokens(rows=ROWS, batch=2):
    ids = torch.randint(3, 97, (batch, rows + 1), generator=torch.Generator().manual_seed(4))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()  # labels are shifted before anything is dealt


def trained(model, context, group=None):
    """Losses of steps of training, then all parameters."""
    optimizer, losses = torch.optim.SGD(model.parameters(), lr=0.5), []
    for _ in range(STEPS):
        ids, labels = tokens()
        positions = torch.arange(ROWS).expand(2, -1).contiguous()
        with context([ids, labels, positions]):
            logits = model(ids, position_ids=positions, use_cache=False).logits
            loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / (2 * ROWS)
            loss.backward()
        total = loss.detach().clone()
        if group is not None:
            for x in (total, *(p.grad for p in model.parameters())):
                dist.all_reduce(x, group=group)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(total))
    return losses, [p.detach() for p in model.parameters()]


def causal_without_mask(model):
    """Positions that were dealt tell Transformers nothing of a mask: Accelerate's hook, or what it does."""
    with contextlib.suppress(ImportError):
        from accelerate.big_modeling import _attach_context_parallel_hooks

        _attach_context_parallel_hooks(model)
        return model

    def hook(module, args, kwargs):
        return args, {**kwargs, "attention_mask": None, "is_causal": True}

    for name, module in model.named_modules():
        if name.endswith("self_attn"):
            module.register_forward_pre_hook(hook, with_kwargs=True)
    return model


def train_in_context(group):
    from xeflash.integrations import torch_sdpa

    group = group or dist.group.WORLD
    mesh = DeviceMesh.from_group(group, "cpu", mesh_dim_names=("cp",))
    want, want_parameters = trained(llama(implementation="sdpa"), lambda buffers: contextlib.nullcontext())
    calls = torch_sdpa.calls()
    with torch_sdpa.use_xeflash():
        got, parameters = trained(
            causal_without_mask(llama(implementation="sdpa")),
            lambda buffers: experimental.context_parallel(
                mesh, buffers=buffers, buffer_seq_dims=[1] * 3, no_restore_buffers=set(buffers)
            ),
            group,
        )
    after = torch_sdpa.calls()
    assert (after.xeflash - calls.xeflash, after.torch - calls.torch) == (2 * STEPS, 0)  # of two layers
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-6)
    for x, y in zip(parameters, want_parameters, strict=True):
        torch.testing.assert_close(x, y, atol=1e-6, rtol=1e-5)
    return got


def test_a_model_trains_in_torchs_context_manager():
    losses = ranks.run(train_in_context, world=2)
    assert losses[0] == losses[1] and losses[0][1] < losses[0][0]


# ---- tensor parallel ----------------------------------------------------------------------------


def parallel(_group, folder):
    """tp_plan="auto": heads are dealt, and with them those of both kinds of cache."""
    from tiny_models import given_cache, prompts
    from transformers import AutoModelForCausalLM
    from xeflash.integrations.transformers import NAME, XeCache, register

    names = {"WORLD_SIZE": dist.get_world_size(), "RANK": dist.get_rank(), "LOCAL_RANK": dist.get_rank()}
    os.environ.update({name: str(x) for name, x in names.items()})
    register()
    whole = llama()
    model = AutoModelForCausalLM.from_pretrained(folder, tp_plan="auto", attn_implementation=NAME, dtype=torch.float32)
    widths = []
    model.model.layers[0].self_attn.k_proj.register_forward_hook(lambda *given: widths.append(given[2].shape[-1]))
    given = prompts(padded=True)
    how = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}
    want = whole.generate(**given, **how)
    for cache in ({}, given_cache(XeCache(model.config))):
        assert torch.equal(model.generate(**given, **how, **cache), want)
    assert set(widths) == {64}  # one head of keys of two
    ids, _ = tokens()
    found = []
    for one in (whole, model):
        loss = one(ids, use_cache=False, labels=ids).loss
        loss.backward()
        found.append((float(loss.detach()), one.model.layers[0].input_layernorm.weight.grad))
    return found


def test_a_model_in_tensor_parallel(tmp_path):
    pytest.importorskip("accelerate")  # Transformers wants it for tp_plan
    llama().save_pretrained(tmp_path)
    with ranks.Ranks(2) as mine:  # a plan is for the whole world
        for (want, dx), (got, dx_here) in mine.run(parallel, tmp_path):
            assert abs(got - want) < 1e-6
            torch.testing.assert_close(dx_here, dx, atol=1e-6, rtol=1e-4)
