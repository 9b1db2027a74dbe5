"""Trees of guesses: `tree_mask`, by which the queries on a cache see some of the last keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import xeflash
from arrays import from_array, to_array
from cover import few, few_rows
from launches import launched_by
from specs import cached, run
from xeflash.api.attention.trees import packed
from xeflash.selftest.attention.spec import Spec

NODES = (1, 2, 8, 31, 32, 33, 60, 64, 200)
KINDS = ("tree", "tree=shared", "tree=any", "tree=words")


def on_cache(*kernel: Any, rows: int = 33, **more: Any) -> Spec:
    """Nodes of a tree on a cache; one of the sequences has no other keys."""
    usual = {"variant": "tree", "heads": (4, 2), "keys": (rows + 129, rows, rows + 700)}
    return cached(*kernel, rows=rows, **usual | more)


def packed_queries(*kernel: Any, **more: Any) -> Spec:
    """Trees of different sizes, one of them empty."""
    usual: dict[str, Any] = {"entry": "varlen-alone", "place": "paged16", "variant": "tree", "heads": (4, 2)}
    return Spec(*kernel, rows=(8, 0, 33, 1), keys=(140, 9, 33, 300), **usual | more)


@pytest.mark.parametrize("variant", KINDS)
@pytest.mark.parametrize("rows", NODES)
def test_nodes_match_reference(rows, variant):
    run(on_cache("fp32", rows=rows, variant=variant, heads=(2, 2), kind="numpy" if rows % 2 else "torch"))


@pytest.mark.parametrize("splits", [0, 1, 3])
@pytest.mark.parametrize("rows", few([2, 8, 60], 2, 8))
def test_keys_may_be_split(rows, splits):
    run(on_cache("fp32", rows=rows, splits=splits, sinks=splits == 3, lse=True))


@pytest.mark.parametrize(
    "case",
    [
        packed_queries("fp32"),
        packed_queries("fp32", variant="tree=words"),
        packed_queries("fp32", variant="tree=shared", sinks=True),
        packed_queries("fp32", entry="varlen-used", place="paged48", variant="tree=any"),
        on_cache("fp32", place="paged16", new=33),
        on_cache("fp32", place="paged16", rows=8, new=3),
        on_cache("fp32", rows=8, new=8, rotary="pairs"),
        on_cache("fp32", rows=33, new=33, rotary="halves", place="pad"),
        on_cache("fp32", place="index", variant="tree=words"),
        pytest.param(on_cache("fp32", place="beams"), marks=pytest.mark.wide),
        pytest.param(on_cache("fp32", variant="softcap+tree"), marks=pytest.mark.wide),
        pytest.param(on_cache("fp32", variant="snippet+tree"), marks=pytest.mark.wide),
        pytest.param(on_cache("bf16", format="e4m3", place="paged64", rows=8), marks=pytest.mark.wide),
        pytest.param(on_cache("fp16", 128, format="int8.array", rows=60), marks=pytest.mark.wide),
        pytest.param(packed_queries("bf16", 128, format="e5m2"), marks=pytest.mark.wide),
        pytest.param(on_cache("bf16", 576, 512, heads=(16, 1), rows=60), marks=pytest.mark.wide),
        pytest.param(on_cache("fp16", 111, rows=200, heads=(6, 2)), marks=pytest.mark.wide),
    ],
    ids=lambda case: case.id,
)
def test_every_cache_matches_reference(case):
    run(case)


@pytest.mark.parametrize(("dtype", "rows"), few_rows([("bf16", 60), ("bf16", 8), ("fp16", 60)]))
def test_nodes_in_16_bits(dtype, rows):
    run(on_cache(dtype, rows=rows, heads=(8, 2)))


def chain(nodes: int) -> torch.Tensor:
    return torch.ones(nodes, nodes, dtype=torch.bool).tril()


def plain(rows: int, keys: int = 90, batch: int = 2, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    random = torch.Generator().manual_seed(rows)
    return tuple(torch.randn(batch, n, 2, 64, generator=random).to(dtype) for n in (rows, keys, keys))


@pytest.mark.parametrize("rows", [1, 9, 70])
def test_a_chain_is_causal_attention(rows):
    q, k, v = plain(rows)
    want = xeflash.flash_attn_with_kvcache(q, k, v, causal=True)
    torch.testing.assert_close(xeflash.flash_attn_with_kvcache(q, k, v, tree_mask=chain(rows)), want)


def test_the_greatest_tree():
    run(on_cache("fp32", rows=1024, heads=(1, 1), keys=(1500,)))


@pytest.mark.parametrize("nodes", [1, 31, 32, 33, 64, 1000])
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_words_have_a_bit_for_each_node(nodes, kind):
    mask = torch.rand(3, nodes, nodes, generator=torch.Generator().manual_seed(nodes)) < 0.5
    words = np.asarray(packed(mask if kind == "torch" else mask.numpy()))
    assert words.shape == (3, nodes, -(-nodes // 32)) and words.dtype == np.int32
    bits = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")
    assert (bits[..., :nodes] == mask.numpy()).all() and not bits[..., nodes:].any()
    assert packed(mask[0]).shape == (1, *words.shape[1:])


def test_words_may_be_a_view():
    q, k, v = plain(40)
    mask = (torch.rand(2, 40, 40, generator=torch.Generator().manual_seed(1)) < 0.5) | torch.eye(40, dtype=torch.bool)
    want = xeflash.flash_attn_with_kvcache(q, k, v, tree_mask=mask)
    words = packed(mask)
    apart = torch.full((2, 40, 4), -1, dtype=torch.int32)
    apart[..., 1:3] = words
    shared = words[:1].expand(2, -1, -1)
    assert torch.equal(xeflash.flash_attn_with_kvcache(q, k, v, tree_mask=apart[..., 1:3]), want)
    assert torch.equal(xeflash.flash_attn_with_kvcache(q, k, v, tree_mask=shared)[0], want[0])
    assert torch.equal(xeflash.flash_attn_with_kvcache(q, k, v, tree_mask=words.flatten(0, 1)), want)


@torch.no_grad()
def test_compiled_calls_give_the_same_bits():
    q, k, v = plain(9)
    call = torch.compile(
        lambda *x: xeflash.flash_attn_with_kvcache(*x[:3], tree_mask=x[3]), fullgraph=True, backend="aot_eager"
    )
    want = xeflash.flash_attn_with_kvcache(q, k, v, tree_mask=chain(9))
    assert torch.equal(call(q, k, v, chain(9)), want)


def test_an_empty_place_of_a_batch_gets_zeros():
    q, k, v = plain(5)
    out = xeflash.flash_attn_with_kvcache(q, k, v, cache_seqlens=torch.tensor([30, 0]).int(), tree_mask=chain(5))
    want = xeflash.flash_attn_with_kvcache(q[:1], k[:1], v[:1], cache_seqlens=30, causal=True)
    assert not out[1].any()
    torch.testing.assert_close(out[:1], want)


def test_bits_that_are_too_many_say_nothing():
    """Nodes beyond those of a sequence have no keys."""
    q, k, v = plain(5)
    words = packed(chain(5)) | (-1 << 5)
    want = xeflash.flash_attn_with_kvcache(q, k, v, tree_mask=chain(5))
    assert torch.equal(xeflash.flash_attn_with_kvcache(q, k, v, tree_mask=words), want)


# ---- on GPUs ------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case",
    [
        on_cache("bf16", rows=60, heads=(8, 2), variant="tree=words", kind="gpu"),
        # heads are packed, threads take turns at the keys
        pytest.param(on_cache("bf16", rows=8, heads=(8, 2), kind="gpu"), marks=pytest.mark.wide),
        packed_queries("bf16", variant="tree=any", kind="gpu"),
        pytest.param(on_cache("bf16", place="beams", kind="gpu"), marks=pytest.mark.wide),
        pytest.param(on_cache("fp32", place="paged16", kind="gpu"), marks=pytest.mark.wide),
        pytest.param(packed_queries("fp16", 128, format="e4m3", kind="gpu"), marks=pytest.mark.wide),
        pytest.param(on_cache("fp16", 256, rows=200, kind="gpu"), marks=pytest.mark.wide),
        pytest.param(on_cache("bf16", variant="softcap+tree", kind="gpu"), marks=pytest.mark.wide),
    ],
    ids=lambda case: case.id,
)
def test_nodes_on_gpu(gpu, case):
    run(case)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [8, 60])
def test_a_tree_costs_little_more_than_a_chain_on_gpu(gpu, rows):
    random = np.random.default_rng(0)
    tree = np.eye(rows, dtype=bool)
    for node in range(1, rows):
        tree[node] |= tree[random.integers(0, node)]
    shapes = (1, rows, 16, 64), (1, 4096, 2, 64), (1, 4096, 2, 64)
    q, k, v = (to_array(torch.zeros(shape, dtype=torch.bfloat16), "gpu") for shape in shapes)
    words = to_array(torch.from_numpy(packed(tree)), "gpu")

    def counted(**more: Any) -> tuple[int, int]:
        records = launched_by(lambda: xeflash.flash_attn_with_kvcache(q, k, v, **more))
        return sum(x.instructions for x in records), sum(x.global_read + x.global_written for x in records)

    chained, branched = counted(causal=True), counted(tree_mask=words)
    assert branched[0] <= 1.04 * chained[0] and branched[1] <= 1.01 * chained[1]


@pytest.mark.gpu
def test_words_on_a_device_are_trusted(gpu):
    """Nodes that see no node, not even themselves, see the keys before all nodes."""
    q, k, v = plain(5, 600, dtype=torch.bfloat16)
    words = torch.zeros(1, 5, 1, dtype=torch.int32)
    arrays = [to_array(x, "gpu") for x in (q, k, v)]
    got = xeflash.flash_attn_with_kvcache(*arrays, tree_mask=to_array(words, "gpu"))
    arrays[1:] = [to_array(x[:, :595].contiguous(), "gpu") for x in (k, v)]
    want = xeflash.flash_attn_with_kvcache(*arrays)
    torch.testing.assert_close(from_array(got, "gpu"), from_array(want, "gpu"), rtol=1e-2, atol=1e-2)


# ---- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "error", "text"),
    [
        ({"causal": True}, ValueError, "causal must be False with tree_mask, which has the order, got True"),
        ({"window_size": (4, 0)}, NotImplementedError, r"window_size must be \(-1, -1\) with tree_mask, .*, got \(4, 0\)"),
        ({"attention_chunk": 9}, NotImplementedError, "attention_chunk must be 0 with tree_mask, .*, got 9"),
        ({"alibi_slopes": torch.ones(2)}, NotImplementedError, "alibi_slopes must be None with tree_mask"),
        ({"tree_mask": chain(6)}, ValueError, r"tree_mask must have shape .*, with T 5, .*, got \[6, 6\]"),
        ({"tree_mask": chain(5).expand(3, 5, 5)}, ValueError, r"tree_mask must have 5 rows for each sequence, \(2, 5"),
        ({"tree_mask": torch.ones(5, 5, dtype=torch.int64)}, TypeError, "must be bool, or words of int32, got int64"),
        ({"tree_mask": chain(5)[None].int()}, ValueError, r"must have a last dimension of ceil\(5 / 32\) = 1, got 5"),
        ({"tree_mask": torch.ones(9, 1, dtype=torch.int32)}, ValueError, r"or be \(10, words\), got \[9, 1\]"),
        ({"tree_mask": torch.ones(1, 5, 0, dtype=torch.int32)}, ValueError, r"must have a last dimension of ceil\(5 / 32\) = 1, got 0"),
        ({"tree_mask": chain(5) & ~chain(5).T}, ValueError, "must let each node see itself, got node 0 of sequence 0"),
        ({"tree_mask": torch.stack([chain(5), chain(5).T.tril(-1) | chain(4).new_ones(5, 5).triu(1)])}, ValueError,
         "got node 0 of sequence 1"),
        ({"cache_seqlens": 4}, ValueError, "tree_mask must come with a key for each of the 5 nodes, got 4 keys"),
        ({"tree_mask": 3}, TypeError, "tree_mask"),
        ({"rotary_positions": torch.zeros(2, 5).int()}, ValueError, "rotary_positions must come with rotary_cos"),
    ],
    ids=str,
)  # fmt: skip
def test_what_makes_no_sense_is_refused(more, error, text):
    q, k, v = plain(5)
    with pytest.raises(error, match=f"flash_attn_with_kvcache: .*{text}"):
        xeflash.flash_attn_with_kvcache(q, k, v, **{"tree_mask": chain(5)} | more)


def rotation(**more: Any) -> dict[str, Any]:
    _, k, v = plain(5, 5)
    return {
        "k": k,
        "v": v,
        "cache_seqlens": 10,
        "rotary_cos": torch.ones(30, 16),
        "rotary_sin": torch.zeros(30, 16),
    } | more


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({}, "rotary_positions must be given with tree_mask and rotary_cos, as nodes of one depth share a position"),
        (
            {"rotary_positions": torch.zeros(2, 4).int()},
            "rotary_positions must have a column for each of the 5 new keys",
        ),
        (
            {"rotary_positions": torch.full((2, 5), 30).int()},
            r"must be 0 to the last row of rotary_cos \(29\), got 30 at",
        ),
        ({"rotary_positions": torch.zeros(2, 5).int() - 1}, r"rotary_cos \(29\), got -1 at \[0, 0\]"),
    ],
    ids=str,
)
def test_nodes_need_positions_of_their_own(more, text):
    q, k, v = plain(5)
    before = k.clone()
    with pytest.raises(ValueError, match=f"flash_attn_with_kvcache: .*{text}"):
        xeflash.flash_attn_with_kvcache(q, k, v, tree_mask=chain(5), **rotation(**more))
    assert torch.equal(k, before)


@pytest.mark.parametrize("longest", [5, np.int64(5), torch.tensor(5), 9], ids=str)
def test_a_mask_is_held_to_the_longest_sequence(longest):
    q, k, v = plain(5, 32)
    starts, pages = torch.tensor([0, 5, 10]).int(), torch.arange(4).int().view(2, 2)
    pools = [x.reshape(4, 16, 2, 64) for x in (k, v)]
    more = {"block_table": pages, "seqused_k": torch.tensor([32, 32]).int(), "tree_mask": chain(5)}

    def call():
        return xeflash.flash_attn_varlen_func(q.flatten(0, 1), *pools, starts, None, longest, 32, **more)

    if longest == 9:
        with pytest.raises(ValueError, match=r"with T at least 9, the nodes of a tree, got \[5, 5\]"):
            call()
    else:
        torch.testing.assert_close(call().view(q.shape), xeflash.flash_attn_with_kvcache(q, k, v, causal=True))


def test_there_are_at_most_1024_nodes():
    q, k, v = plain(1025, 1100, 1)
    with pytest.raises(NotImplementedError, match="tree_mask must have at most 1024 nodes, got 1025"):
        xeflash.flash_attn_with_kvcache(q, k, v, tree_mask=chain(1025))


def test_packed_sequences_without_pages_have_no_tree():
    q, k, v = (x.flatten(0, 1) for x in plain(5, 5))
    starts = torch.tensor([0, 5, 10]).int()
    with pytest.raises(ValueError, match="flash_attn_varlen_func: tree_mask must come with a cache of keys"):
        xeflash.flash_attn_varlen_func(q, k, v, starts, starts, 5, 5, tree_mask=chain(5))


def test_trees_have_no_gradients_and_all_queries():
    q, k, v = plain(5, 32)
    starts, pages = torch.tensor([0, 5, 10]).int(), torch.arange(4).int().view(2, 2)
    k, v = (x.reshape(4, 16, 2, 64) for x in (k, v))
    call = {"cu_seqlens_k": None, "max_seqlen_q": 5, "max_seqlen_k": 32, "block_table": pages, "tree_mask": chain(5)}
    call |= {"seqused_k": torch.tensor([20, 32]).int(), "cu_seqlens_q": starts}
    out = xeflash.flash_attn_varlen_func(q.flatten(0, 1).requires_grad_(), k, v, **call)
    with pytest.raises(NotImplementedError, match="there must be no gradients with block_table"):
        out.sum().backward()
    with pytest.raises(NotImplementedError, match="tree_mask must not come with seqused_q"):
        xeflash.flash_attn_varlen_func(q.flatten(0, 1), k, v, seqused_q=torch.tensor([3, 5]).int(), **call)
