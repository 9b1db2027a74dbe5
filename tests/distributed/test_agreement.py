"""What happens where ranks do not call alike, or are gone: all others raise, and the message says who and what."""

import os
import signal
import time

import pytest
import ranks
import torch
import torch.distributed as dist

CHANGES = {
    "shape": ({"rows": 32}, "q.shape, k.shape, v.shape must be equal on all ranks, got q.shape [1, 16, 4, 64] on rank 0, [1, 32, 4, 64] on rank 2"),
    "dtype": ({"dtype": torch.bfloat16}, "dtype must be equal on all ranks, got dtype torch.float32 on rank 0, torch.bfloat16 on rank 2"),
    "mask": ({"causal": False}, "causal, window_size must be equal on all ranks, got causal True on rank 0, False on rank 2"),
    "softcap": ({"softcap": 2.0}, "softcap must be equal on all ranks, got softcap 0.0 on rank 0, 2.0 on rank 2"),
    "way": ({"how": "all_gather"}, "how must be equal on all ranks, got how ('ring',) on rank 0, ('all_gather',) on rank 2"),
    "shards": ({"shards": "ranges"}, "shards must be equal on all ranks, got shards zigzag on rank 0, ranges on rank 2"),
    "score_mod": ({"score_mod": "s * 2"}, "score_mod must be equal on all ranks, got score_mod None on rank 0, s * 2 on rank 2"),
    "gradients": ({"requires_grad": True}, "requires_grad of q, k, v must be equal on all ranks"),
    "function": ({"unshards": True}, "function must be equal on all ranks, got function context_parallel_attn_func on rank 0, unshard on rank 2"),
    "refused": ({"softcap": -1.0}, "rank 2 refused its arguments: context_parallel_attn_func: softcap must be 0 (off) or positive and finite in float32, got -1.0"),
    "refused_window": ({"window_size": (-5, 0)}, "rank 2 refused its arguments: context_parallel_attn_func: window_size must be -1 (unlimited) or not negative"),
}  # fmt: skip


def call(group, rows=16, dtype=torch.float32, requires_grad=False, unshards=False, **more):
    import xeflash.distributed as cp

    q, k, v = (torch.randn(1, rows, heads, 64).to(dtype).requires_grad_(requires_grad) for heads in (4, 2, 2))
    if unshards:
        return cp.unshard(q, group=group)
    return cp.context_parallel_attn_func(q, k, v, **{"group": group, "causal": True, "how": "ring", **more})


def differs(group, changes):
    last = dist.get_rank(group) == dist.get_world_size(group) - 1
    call(group, **(changes if last else {}))


@pytest.mark.parametrize("name", CHANGES)
def test_all_ranks_raise_and_name_what_differs(name):
    changes, text = CHANGES[name]
    found = ranks.outcomes(differs, changes, world=3)
    assert [x.kind for x in found] == ["ValueError"] * 3
    for rank, x in enumerate(found):
        own = rank == 2 and (name.startswith("refused") or name == "function")
        prefix = "unshard: " if rank == 2 and name == "function" else "context_parallel_attn_func: "
        assert x.text.startswith(prefix) and (text in x.text or (own and name.startswith("refused"))), x.text
    ranks.run(differs, {}, world=3)  # the group is as it was


def one_call_more(group):
    if dist.get_rank(group) == 1:
        import xeflash.distributed.agree as agree

        agree._calls[(group.group_name,)] += 1
    try:
        call(group)
    finally:
        if dist.get_rank(group) == 1:
            agree._calls[(group.group_name,)] -= 1


def test_the_order_of_calls_counts():
    for x in ranks.outcomes(one_call_more, world=2):
        assert x.kind == "ValueError" and "number of the call must be equal on all ranks" in x.text


def differs_on_a_mesh(group, rank):
    import attending

    call(attending.mesh(), how=("ring", "all_to_all"), softmax_scale=0.5 if dist.get_rank() == rank else None)


@pytest.mark.parametrize("rank", [1, 2])
def test_all_ranks_of_a_mesh_raise(rank):
    for x in ranks.outcomes(differs_on_a_mesh, rank):
        assert x.kind == "ValueError" and f"softmax_scale None on rank 0, 0.5 on rank {rank}" in x.text


def backward_in_another_order(group, lengths):
    import xeflash.distributed as cp

    outs = []
    for rows in lengths:
        q, k, v = (torch.randn(1, rows, heads, 64).requires_grad_() for heads in (4, 2, 2))
        outs.append(cp.context_parallel_attn_func(q, k, v, group=group, how="ring").sum())
    outs[dist.get_rank(group)].backward()


@pytest.mark.parametrize("lengths", [(16, 16), (16, 32)], ids=str)
def test_the_backward_pass_is_agreed_on_too(lengths):
    names = ["number of the forward pass", *["shapes"] * (lengths == (16, 32))]
    text = f"context_parallel_attn_func (backward pass): {', '.join(names)} must be equal on all ranks, got"
    for x in ranks.outcomes(backward_in_another_order, lengths, world=2):
        assert x.kind == "ValueError" and text in x.text, x.text


def without_checks(group):
    import xeflash.distributed as cp
    from xeflash.distributed import agree

    gathered = []
    gather, agree._gather = agree._gather, lambda *a: gathered.append(a) or gather(*a)
    assert cp.check_calls(False) is True
    try:
        call(group)
        plain = len(gathered)
        call(group, dropout_p=0.5)
        return plain, len(gathered)  # the seed has to travel
    finally:
        agree._gather = gather
        assert cp.check_calls(True) is False


def test_the_checks_can_be_turned_off():
    assert ranks.run(without_checks, world=2) == [(0, 1), (0, 1)]


def goes_missing(group, how, kill):
    call(group)
    if dist.get_rank(group) == 1:
        if kill:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    begin = time.monotonic()
    try:
        call(group, how=how)
    except RuntimeError as error:
        return type(error).__name__, str(error), time.monotonic() - begin


@pytest.mark.parametrize("kill", [True, False], ids=["killed", "stuck"])
def test_who_is_missing_is_named(kill):
    with ranks.Ranks(3, seconds=3.0, patience=12.0) as mine:
        found = mine.outcomes(goes_missing, "ring", kill)
    assert found[1] == ranks.Died(-9, late=not kill)
    for kind, text, seconds in (found[0], found[2]):
        assert kind == "RuntimeError" and seconds < 10
        assert "context_parallel_attn_func: a transport between ranks failed" in text
        assert "no answer from rank 1 (process 1 of all)" in text, text
