"""What calls over ranks take and refuse, beside the numbers that they give."""

import attending
import pytest
import ranks
import torch
import torch.distributed as dist
import xeflash
import xeflash.distributed as cp
from cover import few

DENSE = "context_parallel_attn_func: "


def qkv(group, rows=16, heads=(4, 2), dim=64, dtype=torch.float32, requires_grad=False):
    torch.manual_seed(3 + dist.get_rank(group))
    return [
        torch.randn(1, rows, h, dim).to(dtype).requires_grad_(requires_grad) for h in (heads[0], heads[1], heads[1])
    ]


# ---- shards -------------------------------------------------------------------------------------


def there_and_back(group, shards):
    where = {"group": attending.mesh() if group is None else group, "shards": shards}
    x = torch.arange(2 * 24 * 3).reshape(2, 24, 3)
    mine, at = cp.shard(x, **where), cp.positions(24, **where)
    starts = torch.tensor([0, 5, 5, 24], dtype=torch.int32)
    inside = cp.positions(24, cu_seqlens=starts, **where)
    assert torch.equal(x[:, at], mine) and mine.is_contiguous()
    assert torch.equal(cp.shard(x, -2, **where), mine)
    assert torch.equal(inside, torch.where(at < 5, at, at - 5))
    mine += 1  # of its own memory
    return torch.equal(cp.unshard(mine, **where), x + 1), at.tolist()


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("shards", ["zigzag", "ranges"])
def test_shards_come_back(world, shards):
    found = ranks.run(there_and_back, shards, world=world)
    assert all(same for same, _ in found) and sorted(x for _, at in found for x in at) == list(range(24))
    if shards == "zigzag" and world == 3:
        assert found[1][1] == [4, 5, 6, 7, 16, 17, 18, 19]


def gradients_of_shards(group):
    x = torch.arange(8.0, requires_grad=True)
    (dx,) = torch.autograd.grad(cp.shard(x, 0, group=group).square().sum(), x)
    return dx.tolist()


def test_gradients_pass_through_shard():
    first, second = ranks.run(gradients_of_shards, world=2)
    assert first == [0, 2, 0, 0, 0, 0, 12, 14] and second == [0, 0, 4, 6, 8, 10, 0, 0]


# ---- refused ------------------------------------------------------------------------------------

REFUSED = {
    "shards": ({"shards": "x"}, "shards must be 'zigzag' or 'ranges', got 'x'"),
    "how": ({"how": "x"}, "how must be one of all_gather, ring, all_to_all, auto for one group, got 'x'"),
    "how_of_two": ({"how": ("ring", "all_to_all")}, "how must be one of all_gather"),
    "heads": ({"how": "all_to_all", "heads": (3, 1)}, "q must have a multiple of 2 heads for how='all_to_all', got 3"),
    "heads_k": ({"heads": (4, 3)}, "k.heads must divide q.heads (4), got 3"),
    "rows": ({"rows": 15}, "q must have a multiple of 2 rows for 'zigzag', got 15"),
    "window": ({"window_size": (-5, 0)}, "window_size must be -1 (unlimited) or not negative"),
    "softcap": ({"softcap": 1.0, "dropout_p": 0.5}, "softcap does not support dropout, got dropout_p = 0.5, softcap = 1.0"),
    "dropout": ({"dropout_p": 1.5}, "dropout_p must be 0 to 1, got 1.5"),
    "chunks": ({"dropout_p": 0.5, "rows": 20}, "q must have chunks of a multiple of 8 rows with dropout, except with how='all_to_all', got 10"),
    "probabilities": ({"dropout_p": 0.5, "return_attn_probs": True}, "return_attn_probs must be False with dropout, whose probabilities are not there, got dropout_p = 0.5"),
    "slopes": ({"alibi_slopes": torch.ones(3)}, "alibi_slopes must have shape [4] or [1, 4], got [3]"),
    "sinks": ({"s_aux": torch.ones(1, 4)}, "s_aux must have shape [4], got [1, 4]"),
    "score_mod": ({"score_mod": "s ? s : b"}, "score_mod must not branch"),
    "captures": ({"captures": {"x": 1}}, "captures are for score_mod and mask_mod"),
    "dtype": ({"dtype": torch.float64}, "q must be float32, float16 or bfloat16, got float64; q.shape = [1, 16, 4, 64]"),
    "learned": ({"score_mod": "s * x[unsigned(h)]", "captures": {"x": torch.ones(4, requires_grad=True)}}, "score_mod must have no other types than float, int and bool where captures require grad, got 'unsigned'"),
    "another": ({"num_splits": 3}, None),
    "documents": ({"documents": [0, 10, 31]}, "cu_seqlens must rise from 0 to the 32 tokens of all ranks, got 0 to 31"),
    "longest": ({"documents": [0, 20, 32], "longest": 19}, "max_seqlen must be at least the tokens of the longest document (20), got 19"),
    "drops_documents": ({"documents": [0, 10, 32], "dropout_p": 0.5}, "dropout_p must be 0 with packed documents, except with how='all_to_all', got 0.5 with how='ring'"),
}  # fmt: skip


def refused(group, more):
    attend(group, **more)


def attend(group, rows=16, heads=(4, 2), dtype=torch.float32, documents=None, longest=32, **more):
    q, k, v = qkv(group, rows, heads, dtype=dtype)
    more = {"group": group, "how": "ring", **more}
    if documents:
        starts = torch.tensor(documents, dtype=torch.int32)
        return cp.context_parallel_attn_varlen_func(q[0], k[0], v[0], starts, longest, **more)
    return cp.context_parallel_attn_func(q, k, v, **more)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_done_is_refused_by_name(name):
    more, text = REFUSED[name]
    for x in ranks.outcomes(refused, more, world=2):
        assert (
            x.kind in ("ValueError", "TypeError", "NotImplementedError", "RuntimeError") and "transport" not in x.text
        )
        prefix = "context_parallel_attn_varlen_func: " if "documents" in more else DENSE
        if text:
            assert x.text.startswith(prefix + text), x.text
        else:
            assert x.text.startswith(prefix[:-2]), x.text


def other_kinds(group):
    from torch.distributed.tensor import DTensor, Replicate

    q, k, v = qkv(group)
    found = []
    mesh = torch.distributed.device_mesh.DeviceMesh.from_group(group or dist.group.WORLD, "cpu")
    for x, more in (
        (q.numpy(), {}),
        (q.to("meta"), {}),
        (q.to_sparse(), {}),
        (DTensor.from_local(q, mesh, [Replicate()], run_check=False), {}),
        (q, {"group": (group,) * 3}),
        (q, {"group": "x"}),
    ):
        try:
            cp.context_parallel_attn_func(x, k, v, **{"group": group, **more})
        except (TypeError, ValueError) as error:
            found.append(str(error))
    out = cp.context_parallel_attn_func(q, k, v, group=mesh)  # a mesh of one dimension is a group
    return found, torch.equal(out, cp.context_parallel_attn_func(q, k, v, group=group))


def test_what_is_no_shard_or_no_group_is_refused():
    for texts, same in ranks.run(other_kinds, world=2):
        assert len(texts) == 6 and same
        assert texts[0].startswith(
            DENSE + "q must be a torch tensor, this rank's shard (of a DTensor: to_local()), got nd"
        )
        dense = DENSE + "q must be a dense tensor on a cpu or xpu device, got "
        assert texts[1:3] == [dense + "meta", dense + "torch.sparse_coo"]
        assert texts[3].endswith("got DTensor")
        assert all(x.startswith(DENSE + "group must be a group that this process is a member of") for x in texts[4:])


def test_without_a_group_torch_distributed_has_to_be_initialised():
    with pytest.raises(RuntimeError, match=f"{DENSE}torch.distributed must be initialised"):
        cp.context_parallel_attn_func(*(torch.ones(1, 2, 1, 64) for _ in range(3)))


# ---- taken --------------------------------------------------------------------------------------


def double_backward(group):
    q, k, v = qkv(group, requires_grad=True)
    out = cp.context_parallel_attn_func(q, k, v, group=group)
    (dq,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
    torch.autograd.grad(dq.sum(), q)


def test_there_is_no_double_backward():
    for x in ranks.outcomes(double_backward, world=2):
        assert x.kind == "NotImplementedError"
        assert x.text == DENSE + "gradients must not be differentiated again, as there is no double backward"


def compiled(group):
    q, k, v = qkv(group, requires_grad=True)

    def model(q, k, v):
        return cp.context_parallel_attn_func(q * 2, k, v, causal=True, group=group, how="ring") + 1

    want = model(q, k, v)
    found = torch.compile(model, backend="eager")(q, k, v)
    same = [torch.equal(found, want)]
    same += [torch.equal(*(torch.autograd.grad(x.sum(), q)[0] for x in (found, want)))]
    torch._dynamo.reset()
    try:
        torch.compile(model, backend="eager", fullgraph=True)(q, k, v)
    except Exception as error:
        return same, type(error).__name__
    return same, "taken"


def test_compile_leaves_the_call_out_of_its_graph():
    for same, error in ranks.run(compiled, world=2):
        assert same == [True, True] and error == "Unsupported"


def autocast(group):
    q, k, v = qkv(group)
    with torch.autocast("cpu", torch.bfloat16):
        out = cp.context_parallel_attn_func(q, k, v, group=group)
    want = cp.context_parallel_attn_func(*(x.bfloat16() for x in (q, k, v)), group=group)
    return out.dtype, torch.equal(out, want)


def test_autocast_casts():
    assert ranks.run(autocast, world=2) == [(torch.bfloat16, True)] * 2


def checkpointed(group):
    grads = []
    for wrap in (False, True):
        q, k, v = qkv(group, requires_grad=True)
        torch.manual_seed(5)

        def run(q, k, v):
            return cp.context_parallel_attn_func(q, k, v, dropout_p=0.5, group=group, how="ring")

        out = torch.utils.checkpoint.checkpoint(run, q, k, v, use_reentrant=False) if wrap else run(q, k, v)
        grads.append(torch.autograd.grad(out.square().sum(), (q, k, v)))
    return all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_checkpoints_draw_the_same_dropout():
    assert ranks.run(checkpointed, world=2) == [True, True]


def crossing(group, how):
    """Keys of another sequence, of another length."""
    q, k, v = qkv(group, heads=(8, 4), requires_grad=True)
    k, v = (x[:, :6].detach().contiguous().requires_grad_() for x in (k, v))
    out, lse, none = cp.context_parallel_attn_func(q, k, v, group=group, how=how, return_attn_probs=True)
    whole = [cp.unshard(x.detach(), group=group) for x in (q, k, v)]
    want, want_lse, _ = xeflash.flash_attn_func(*whole, return_attn_probs=True)
    near = torch.allclose(out, cp.shard(want, group=group), atol=1e-5)
    refusal = ""
    try:
        cp.context_parallel_attn_func(q, k, v, causal=True, group=group, how=how)
    except ValueError as error:
        refusal = str(error)
    dk = torch.autograd.grad(out.sum(), (q, k, v))[1]
    return near, torch.allclose(lse, cp.shard(want_lse, -1, group=group), atol=1e-5), none, dk.shape == k.shape, refusal


@pytest.mark.parametrize("how", ["ring", "all_gather", "all_to_all"])
def test_keys_may_be_of_another_sequence_where_positions_do_not_count(how):
    for *right, refusal in ranks.run(crossing, how, world=2):
        assert right == [True, True, None, True]
        assert refusal.startswith(DENSE + "k must have as many rows as q (16) with masks, documents or positions")


def hides_rows(group, how):
    """A score_mod that hides all keys of some rows: they are 0, their LSE +inf, and nothing is NaN."""
    q, k, v = qkv(group, requires_grad=True)
    mod = "select(q_idx % 3 == 1, -inf, s)"
    out, lse = cp.context_parallel_attn_func(q, k, v, score_mod=mod, group=group, how=how, return_lse=True)
    hidden = cp.positions(16 * dist.get_world_size(group), group=group) % 3 == 1
    grads = torch.autograd.grad(out.square().sum(), (q, k, v))
    return (
        bool((out[:, hidden] == 0).all() and (lse[..., hidden] == torch.inf).all()),
        bool(out.isfinite().all() and lse[..., ~hidden].isfinite().all()),
        all(bool(x.isfinite().all()) for x in grads), bool((grads[0][:, hidden] == 0).all()),
    )  # fmt: skip


@pytest.mark.parametrize("how", few(["ring", "all_gather", "all_to_all"], "all_gather"))
def test_rows_that_see_no_key(how):
    assert ranks.run(hides_rows, how, world=2) == [(True,) * 4] * 2
