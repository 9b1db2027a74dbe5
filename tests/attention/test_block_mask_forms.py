"""Masks of blocks in all their forms: the bits that they become, what is refused, and what is made once."""

from __future__ import annotations

import gc
import types
from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch
import xeflash
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from xeflash import _core
from xeflash.api.attention import blocks as of_blocks
from xeflash.api.attention import made_once
from xeflash.call.call import Call
from xeflash.call.schema import BHSD, BSHD
from xeflash.selftest.arrays import UsmArrays
from xeflash.selftest.attention.snippets import MASK_MOD, PERIOD
from xeflash.selftest.values import Values

BATCH, HEADS, ROWS, KEYS = 2, 4, 300, 1100
Tensors = namedtuple("Tensors", of_blocks._OF_FLASH)


def random(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def call_of(block_mask: Any, block_size: Any = None, rows: int = ROWS, keys: int = KEYS, **more: Any) -> Call:
    q, k = torch.empty(BATCH, HEADS, rows, 64), torch.empty(BATCH, 2, keys, 64)
    given = {"function": "attention", "layout": BHSD, "q": q, "k": k, "v": k, "block_mask": block_mask}
    return Call(
        given | ({"block_size": block_size} if block_size is not None else {}) | more, {"q": "query", "k": "key"}
    )


def bits_of(*given: Any, **more: Any) -> tuple[np.ndarray, int, int]:
    call = of_blocks.with_blocks(call_of(*given, **more))
    assert "block_mask" not in call and "block_size" not in call
    return np.asarray(call["blocks"]), call["block_rows"], call["block_keys"]


def by_loop(listed: np.ndarray, full: np.ndarray) -> np.ndarray:
    """The bits of (B, H, QB, KB), block by block."""
    batch, heads, rows, keys = listed.shape
    parts = []
    for turned in (False, True):
        for bools in (listed, full):
            own, others = (keys, rows) if turned else (rows, keys)
            words = np.zeros((batch, heads, own, -(-others // 32)), np.uint32)
            for b, h, i, j in np.argwhere(bools):
                at, bit = (j, i) if turned else (i, j)
                words[b, h, at, bit // 32] |= np.uint32(1 << bit % 32)
            parts.append(words.reshape(batch, heads, -1))
    return np.concatenate(parts, -1).view(np.int32)


def drawn(rows: int, keys: int, batch: int = BATCH, heads: int = HEADS) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocks that are partial, and others that are full; the first rows of blocks have none."""
    kind = torch.randint(0, 3, (batch, heads, rows, keys), generator=random(rows + keys))
    kind[..., 0, :] = 0
    return kind == 1, kind == 2


def lists(bools: torch.Tensor, columns: int | None = None, garbage: int = 77_777) -> tuple[torch.Tensor, torch.Tensor]:
    """Counts and indices, in an order of their own, with anything behind them."""
    *lead, keys = bools.shape
    counts = bools.sum(-1).int()
    columns = keys if columns is None else columns
    indices = torch.full((*lead, columns), garbage, dtype=torch.int32)
    for at in np.ndindex(*lead):
        named = bools[at].nonzero().flatten()
        named = named[torch.randperm(len(named), generator=random(len(named)))]
        indices[at][: len(named)] = named.int()
    return counts, indices


def of_torch(partial: Any, full: Any, size: Any, rows: int = ROWS, keys: int = KEYS, mask_mod: Any = None) -> BlockMask:
    columns = [int(x.sum(-1).max()) for x in (partial, full)]  # as few as will do
    parts = [*lists(partial, columns[0]), *lists(full, columns[1])]
    return BlockMask.from_kv_blocks(*parts, size, mask_mod, (rows, keys), compute_q_blocks=False)


# ---- the bits ------------------------------------------------------------------------------------

SIZES = [(16, 16), (64, 32), (128, 128), (512, 2048)]


@pytest.mark.parametrize("with_text", [False, True], ids=["alone", "mask_mod"])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_all_forms_have_the_bits_of_a_loop(size, with_text):
    rows, keys = -(-ROWS // size[0]), -(-KEYS // size[1])
    partial, full = drawn(rows, keys)
    listed, more = partial | full, {"mask_mod": "true"} if with_text else {}
    want = by_loop(listed.numpy(), (full if with_text else listed).numpy())
    four = (*lists(partial), *lists(full))
    forms = [
        (of_torch(partial, full, size), None),
        (of_torch(partial, full, size), size),
        (four, size),
        (list(four), size),
        (tuple(x.numpy() for x in four), size),
        (Tensors(*four), size),
        (types.SimpleNamespace(**Tensors(*four)._asdict(), block_size=size), None),
    ]
    for mask, block_size in forms:
        bits, *sides = bits_of(mask, block_size, **more)
        assert bits.dtype == np.int32 and tuple(sides) == size
        np.testing.assert_array_equal(bits, want)
    want = by_loop(listed.numpy(), (listed & (not with_text)).numpy())
    for mask in (listed, listed.numpy()):
        np.testing.assert_array_equal(bits_of(mask, size, **more)[0], want)


def test_each_list_may_be_for_all_sequences_or_heads():
    partial, full = drawn(5, 9, BATCH, 1)[0], drawn(5, 9, 1, HEADS)[1]
    size = (64, 128)
    got, *_ = bits_of((*lists(partial), *lists(full)), size, mask_mod="true")
    listed = partial | full
    np.testing.assert_array_equal(got, by_loop(listed.numpy(), full.expand_as(listed).numpy()))
    one = drawn(5, 9, 1, 1)[0]
    of_numpy = [x.numpy() for x in lists(one[0])]
    for mask in (lists(one), lists(one[0]), lists(one[0, 0]), (*lists(one), None, None), of_numpy):
        np.testing.assert_array_equal(bits_of(mask, size)[0], by_loop(one.numpy(), one.numpy()))


@pytest.mark.parametrize("size", [(96, 48), (48, 128), (16 * 9, 80), (16 * ((1 << 40) + 1), 3 << 21)], ids=str)
def test_sizes_that_are_no_powers_of_two_are_divided(size):
    rows, keys = -(-ROWS // size[0]), -(-KEYS // size[1])
    listed = drawn(rows, keys)[0] | (rows == 1)
    got, *unit = bits_of(listed, size)
    assert tuple(unit) == tuple(min(x & -x, 1 << 20) for x in size)
    elements = listed.repeat_interleave(min(size[0], ROWS), -2).repeat_interleave(min(size[1], KEYS), -1)
    small = elements[..., : ROWS : unit[0], : KEYS : unit[1]].numpy()
    np.testing.assert_array_equal(got, by_loop(small, small))
    np.testing.assert_array_equal(bits_of(lists(listed), size)[0], got)


def test_create_block_mask():
    """Its function of Python says what our text says; what it finds are the blocks of a causal mask."""
    mask = create_block_mask(
        lambda b, h, q, k: k <= q + 800, None, None, ROWS, KEYS, device="cpu", BLOCK_SIZE=(64, 128)
    )
    i, j = np.arange(ROWS)[:, None], np.arange(KEYS)
    seen = np.pad(j <= i + 800, ((0, -ROWS % 64), (0, -KEYS % 128)))
    seen = seen.reshape(5, 64, 9, 128).swapaxes(1, 2)
    there = (
        np.pad(np.ones((ROWS, KEYS), bool), ((0, -ROWS % 64), (0, -KEYS % 128))).reshape(5, 64, 9, 128).swapaxes(1, 2)
    )
    listed = seen.any((2, 3))[None, None]
    got, *_ = bits_of(mask, mask_mod="k_idx <= q_idx + 800")
    words = 5 * 1
    np.testing.assert_array_equal(got[..., :words], by_loop(listed, listed)[..., :words])
    full = [[bool(got[0, 0, words + i] >> j & 1) for j in range(9)] for i in range(5)]
    assert not (np.array(full) & (~seen & there).any((2, 3))).any() and np.array(full).any()


@pytest.mark.parametrize("sizes", [(0, 64), (64, 0), (0, 0)], ids=str)
def test_no_rows_or_no_keys(sizes):
    shape = tuple(-(-x // 32) for x in sizes)
    for mask in (torch.ones(1, 1, *shape, dtype=torch.bool), np.ones((1, 1, *shape), bool)):
        bits, *_ = bits_of(mask, 32, rows=sizes[0], keys=sizes[1])
        assert bits.shape == (1, 1, 0)


@pytest.mark.parametrize("sizes", [(0, 4, 90, 130), (2, 0, 90, 130), (2, 4, 0, 130), (2, 4, 90, 0)], ids=str)
def test_calls_without_elements(sizes):
    batch, heads, rows, keys = sizes
    q, k = torch.empty(batch, heads, rows, 64), torch.empty(batch, heads, keys, 64)
    listed = torch.ones(batch, heads, -(-rows // 64), -(-keys // 32), dtype=torch.bool)
    masks = [listed, listed.numpy(), listed[:1], listed[:, :1], lists(listed)]
    for mask in masks:
        for more in ({}, TEXT):
            out = xeflash.attention(q, k, k, block_mask=mask, block_size=(64, 32), **more)
            assert out.shape == q.shape and not out.any()


# ---- what is computed ----------------------------------------------------------------------------

# One text, so that one kernel serves all.
KIND = torch.tensor([1, 0, 2, 0, 1, 1, 3]).int()
TEXT = {"mask_mod": MASK_MOD, "captures": {"reach": torch.full((4,), 130).int(), "kind": KIND, "period": PERIOD}}
ODD = KIND[(torch.arange(130) // 32 + torch.arange(2)[:, None, None, None]) % PERIOD] > 0
Q, K, V = (torch.randn(BATCH, heads, n, 64, generator=random(n)) for heads, n in ((4, 90), (2, 130), (2, 130)))


def attend(**more: Any) -> torch.Tensor:
    return xeflash.attention(**{"query": Q, "key": K, "value": V, "enable_gqa": True} | more)


def masked(seen: torch.Tensor) -> torch.Tensor:
    """The same with a mask of elements, (.., L, S)."""
    return attend(attn_mask=seen)


def elements(listed: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    return listed.repeat_interleave(size[0], -2).repeat_interleave(size[1], -1)[..., :90, :130]


def test_results_of_a_block_mask():
    size = (32, 64)
    partial, full = drawn(3, 3)
    mask = of_torch(partial, full, size, 90, 130, lambda b, h, q, k: KIND[(k // 32 + b) % PERIOD] > 0)
    want = masked((elements(partial, size) & ODD) | elements(full, size))
    torch.testing.assert_close(attend(block_mask=mask, **TEXT), want)
    flash = [x.transpose(1, 2) for x in (Q, K, V)]
    four = Tensors(*lists(partial), *lists(full))
    for more in ({}, {"block_sparse_tensors_bwd": four}):
        out = xeflash.flash_attn_func(*flash, block_sparse_tensors=four, block_size=size, **TEXT, **more)
        torch.testing.assert_close(out.transpose(1, 2), want)


def test_other_ranks_have_one_batch():
    listed = drawn(3, 3, 1)[0]
    got = xeflash.attention(Q[0], K[0], V[0], enable_gqa=True, block_mask=listed, block_size=(32, 64))
    torch.testing.assert_close(got, masked(elements(listed, (32, 64)))[0])
    listed = drawn(3, 3)[0]
    got = xeflash.attention(*(x[:, None] for x in (Q, K, V)), enable_gqa=True, block_mask=listed, block_size=(32, 64))
    torch.testing.assert_close(got[:, 0], masked(elements(listed, (32, 64))))


@pytest.mark.wide
def test_dropouts_probabilities_are_those_of_listed_blocks():
    listed = drawn(3, 3)[0]
    flash = [x.transpose(1, 2) for x in (Q, K, V)]
    *_, p = xeflash.flash_attn_func(*flash, 0.3, return_attn_probs=True, block_mask=listed, block_size=(32, 64))
    assert not p[~elements(listed, (32, 64))].any() and p.any()


@pytest.mark.parametrize("form", ["argument", "closed over", "bools"])
def test_compiled_calls_do_the_same(form):
    torch.compiler.reset()
    partial, full = drawn(3, 3)
    mask = of_torch(partial, full, (32, 64), 90, 130, lambda b, h, q, k: KIND[(k // 32 + b) % PERIOD] > 0)
    q, k, v = (x.clone().requires_grad_() for x in (Q, K, V))

    def run(q: torch.Tensor, mask: Any, size: Any) -> torch.Tensor:
        return xeflash.attention(q, k, v, enable_gqa=True, block_mask=mask, block_size=size, **TEXT)

    given: Any = (partial, (32, 64)) if form == "bools" else (mask, None)
    want = run(q, *given)
    wanted = torch.autograd.grad(want.square().sum(), [q, k, v])
    function = (lambda q: run(q, *given)) if form == "closed over" else run
    arguments = () if form == "closed over" else given
    got = torch.compile(function, backend="aot_eager", fullgraph=True)(q, *arguments)
    assert torch.equal(got, want)
    for one, other in zip(torch.autograd.grad(got.square().sum(), [q, k, v]), wanted, strict=True):
        assert torch.equal(one, other)


def test_make_fx_follows_lists():
    listed = drawn(3, 3, 1)[0]

    def run(q: torch.Tensor, *mask: torch.Tensor) -> torch.Tensor:
        return xeflash.attention(q, K[:1], V[:1], enable_gqa=True, block_mask=mask, block_size=(32, 64))

    graph = torch.fx.experimental.proxy_tensor.make_fx(run)(Q[:1], *lists(listed))
    for other in (listed, ~listed):
        assert torch.equal(graph(Q[:1], *lists(other, 3)), run(Q[:1], *lists(other)))


def test_below_vmap_and_checkpoints():
    listed = drawn(3, 3, 1)[0]

    k, v = (x[:1].clone().requires_grad_() for x in (K, V))

    def run(q: torch.Tensor, listed: torch.Tensor) -> torch.Tensor:
        return xeflash.attention(q, k, v, enable_gqa=True, block_mask=listed, block_size=(32, 64))

    several = torch.stack([listed, ~listed])
    each = torch.stack([run(Q[:1], x) for x in several])
    assert torch.equal(torch.func.vmap(run, (None, 0))(Q[:1], several), each)
    assert torch.equal(torch.func.vmap(run, (0, None))(Q[None, :1], listed), each[:1])
    q = Q[:1].clone().requires_grad_()
    out = torch.utils.checkpoint.checkpoint(run, q, listed, use_reentrant=False)
    got = torch.autograd.grad(out.square().sum(), [q, k, v])
    for one, want in zip(got, torch.autograd.grad(run(q, listed).square().sum(), [q, k, v]), strict=True):
        assert torch.equal(one, want)


@pytest.mark.wide
def test_keys_in_8_bits_are_a_cache():
    q, k, v = (x.transpose(1, 2) for x in (Q, K, V))
    k, v = ((x * 20).to(torch.int8) for x in (k, v))
    more = {"block_mask": drawn(3, 3)[0], "block_size": (32, 64)}
    got = xeflash.flash_attn_func(q, k, v, k_scale=0.05, v_scale=0.05, **more)
    torch.testing.assert_close(got, xeflash.flash_attn_func(q, k * 0.05, v * 0.05, **more))


def test_the_operator_takes_bits():
    listed = drawn(2, 3)[0] | (torch.arange(3) > 1)
    flash = [x.transpose(1, 2) for x in (Q, K, V)]
    given = {"function": "f", "layout": BSHD, **dict(zip("qkv", flash, strict=True))}
    call = of_blocks.with_blocks(Call(given | {"block_mask": listed, "block_size": 64, "mask_mod": TEXT["mask_mod"]}))
    more = {name: call[name] for name in ("blocks", "block_rows", "block_keys", "mask_mod")}
    captures = TEXT["captures"]
    more |= {"capture_names": ["reach", "kind", "period"], "capture_arrays": [captures["reach"], KIND]}
    more |= {"capture_numbers": [PERIOD]}
    got = torch.ops.xeflash.flash_attn(*flash, **more)[0]
    torch.testing.assert_close(got.transpose(1, 2), masked(elements(listed, (64, 64)) & ODD))


# ---- made once -----------------------------------------------------------------------------------


def blocks(mask: Any, size: Any = None, **more: Any) -> torch.Tensor:
    return of_blocks.with_blocks(call_of(mask, size, **more))["blocks"]


def kept() -> int:
    gc.collect()
    return sum(map(len, made_once._kept.values()))


def test_bits_are_made_once_and_forgotten():
    mask = of_torch(*drawn(5, 9), (64, 128))
    first = blocks(mask)
    before = kept()
    assert blocks(mask) is first and blocks(mask, mask_mod="true") is not first and blocks(mask) is first
    assert kept() == before + 1
    with torch.inference_mode():
        assert blocks(mask) is first and not first.is_inference()
    mask.kv_num_blocks[0, 0, 1] = 0
    assert not torch.equal(blocks(mask), first)
    changed = blocks(mask)
    mask.kv_indices = mask.kv_indices.clone()
    assert blocks(mask) is not changed and torch.equal(blocks(mask), changed)
    del mask
    assert kept() == before - 1

    bools = drawn(5, 9)[0]
    first = blocks(bools, (64, 128))
    assert blocks(bools, (64, 128)) is first
    bools.logical_not_()
    assert not torch.equal(blocks(bools, (64, 128)), first)
    for rows in range(257, 321):  # other lengths of the same blocks
        blocks(bools, (64, 128), rows=rows)
    assert kept() <= before - 1 + made_once._MOST
    del bools
    assert kept() == before - 1


def test_bits_are_not_kept_where_a_tensor_may_change_unseen():
    array = drawn(5, 9)[0].numpy()
    first = blocks(array, (64, 128)).copy()
    array[:] = ~array
    assert not np.array_equal(blocks(array, (64, 128)), first)
    with torch.inference_mode():
        bools = drawn(5, 9)[0].clone()
        inferred = blocks(bools, (64, 128)).clone()
        bools.logical_not_()
        assert not torch.equal(blocks(bools, (64, 128)), inferred)


# ---- refusals ------------------------------------------------------------------------------------

LISTED = torch.ones(1, 1, 2, 3, dtype=torch.bool)  # of 90 rows and 130 keys in blocks of 64
COUNTS, INDICES = lists(LISTED)
PARTIAL = BlockMask.from_kv_blocks(
    COUNTS, INDICES, BLOCK_SIZE=64, mask_mod=lambda b, h, q, k: q >= k, seq_lengths=(90, 130)
)
REFUSED: dict[str, tuple[type[Exception], dict[str, Any], str]] = {
    "size alone": (ValueError, {"block_size": 64}, "block_size must come with block_mask, got 64 without one"),
    "no size": (ValueError, {"block_mask": LISTED}, "block_size must be given, as block_mask has none, got None"),
    "size 8": (NotImplementedError, {"block_mask": LISTED, "block_size": 8},
               "block_size must be a multiple of 16, of rows and of keys, got 8"),
    "size 40": (NotImplementedError, {"block_mask": LISTED, "block_size": (64, 40)},
                "block_size must be a multiple of 16, of rows and of keys, got (64, 40)"),
    "size -16": (NotImplementedError, {"block_mask": LISTED, "block_size": -16}, "got -16"),
    "three sizes": (TypeError, {"block_mask": LISTED, "block_size": (1, 2, 3)},
                    "block_size must be an integer, or two of them (rows, keys), got (1, 2, 3)"),
    "size of text": (TypeError, {"block_mask": LISTED, "block_size": "64"}, "block_size must be an integer"),
    "size of bool": (TypeError, {"block_mask": LISTED, "block_size": True}, "block_size must be an integer"),
    "size 2^63": (ValueError, {"block_mask": LISTED[..., :1, :1], "block_size": 2**63},
                  f"block_size must be below 2^63, got {2**63}"),
    "sparse": (TypeError, {"block_mask": LISTED.to_sparse(), "block_size": 64},
               "block_mask must be a dense tensor of bools, got torch.sparse_coo"),
    "floats": (TypeError, {"block_mask": LISTED.float(), "block_size": 64},
               "block_mask must be bool, a BlockMask of torch, or four tensors of int32: counts and indices of partial and"
               " of full blocks, got float32"),
    "text": (TypeError, {"block_mask": "causal", "block_size": 64}, "block_mask must be a torch tensor, a numpy array or"),
    "shape": (ValueError, {"block_mask": LISTED.expand(2, 3, 2, 3), "block_size": 64},
              "block_mask must have shape [1 or 2, 1 or 4, 2, 3] (90 rows and 130 keys in blocks of 64 and 64), got "
              "[2, 3, 2, 3]"),
    "rank": (ValueError, {"block_mask": LISTED[0], "block_size": 64}, "block_mask must have shape [1 or 2, 1 or 4, 2, 3]"),
    "other size": (ValueError, {"block_mask": PARTIAL, "block_size": 32, "mask_mod": "true"},
                   "block_size must be None, or that of block_mask (64, 64), got 32"),
    "lengths": (ValueError, {"block_mask": BlockMask.from_kv_blocks(COUNTS, INDICES, BLOCK_SIZE=64)},
                "block_mask.seq_lengths must be the rows and keys of this call, (90, 130), got (128, 192)"),
    "python": (NotImplementedError, {"block_mask": PARTIAL},
               "mask_mod must say in C++ what block_mask.mask_mod says in Python, as blocks are partial, got None beside "
               "<lambda>"),
    "three tensors": (ValueError, {"block_mask": (COUNTS, INDICES, COUNTS), "block_size": 64},
                      "block_mask must have four tensors, or two if no block is full, got 3 of them"),
    "int64": (TypeError, {"block_mask": (COUNTS.long(), INDICES), "block_size": 64},
              "block_mask[0] must be a dense tensor of int32, got torch.int64"),
    "half a pair": (TypeError, {"block_mask": (COUNTS, INDICES, COUNTS, None), "block_size": 64},
                    "block_mask[3] must be a torch tensor of int32, or a numpy array as the others, got NoneType"),
    "half of numpy": (TypeError, {"block_mask": (COUNTS, INDICES.numpy()), "block_size": 64},
                      "block_mask[1] must be a torch tensor of int32, or a numpy array as the others, got ndarray"),
    "int64 of numpy": (TypeError, {"block_mask": (COUNTS.long().numpy(), INDICES.numpy()), "block_size": 64},
                       "block_mask[0] must be an array of int32, got int64"),
    "indices of numpy": (ValueError, {"block_mask": (COUNTS.numpy(), INDICES.numpy() + 1), "block_size": 64},
                         "block_mask[1] must be 0 to 2, the blocks of keys, got 3"),
    "counts": (ValueError, {"block_mask": (COUNTS + 1, INDICES), "block_size": 64},
               "block_mask[0] must be 0 to 3, the indices of a list, got 4"),
    "indices": (ValueError, {"block_mask": (COUNTS, INDICES + 1), "block_size": 64},
                "block_mask[1] must be 0 to 2, the blocks of keys, got 3"),
    "shape of counts": (ValueError, {"block_mask": (COUNTS[..., :1], INDICES), "block_size": 64},
                        "block_mask[0] must have shape [1 or 2, 1 or 4, 2] (90 rows), got [1, 1, 1]"),
    "shape of indices": (ValueError, {"block_mask": (COUNTS, INDICES.expand(3, 1, 2, 3)), "block_size": 64},
                         "block_mask[1] must have shape [1 or 2, 1 or 4, 2, blocks of a list] (90 rows), got [3, 1, 2, 3]"),
    "packed": (NotImplementedError,
               {"block_mask": types.SimpleNamespace(**Tensors(COUNTS, INDICES, None, None)._asdict(),
                                                    cu_total_m_blocks=COUNTS, block_size=(64, 64))},
               "block_mask.cu_total_m_blocks must be None"),
    "function": (TypeError, {"mask_mod": lambda b, h, q, k: q >= k},
                 "mask_mod must be a string, a condition in C++ of b, h, q_idx, k_idx and captures; got function"),
    "score": (ValueError, {"mask_mod": "s > 0"}, "mask_mod must not read s, as no score is known yet, got 's > 0'"),
    "branch": (ValueError, {"mask_mod": "q_idx ? 1 : 0"}, "mask_mod must not branch"),
    "empty": (ValueError, {"mask_mod": " // "}, "mask_mod must not be empty"),
    "unread": (ValueError, {"mask_mod": "q_idx > k_idx // n", "score_mod": "s + nn", "captures": {"n": 1}},
               "captures['n'] must occur in score_mod or mask_mod, got 's + nn' and 'q_idx > k_idx // n'"),
    "documents": (NotImplementedError, {"mask_mod": "true", "document_ids": torch.zeros(130).int()},
                  "mask_mod must be None with document_ids, got str"),
    "chunks": (NotImplementedError, {"block_mask": LISTED, "block_size": 64, "attention_chunk": 7},
               "block_mask must be None with attention_chunk, got Tensor"),
    "picks": (NotImplementedError, {"mask_mod": "true", "gather_kv_indices": torch.zeros(2, 90, 1).int()},
              "mask_mod must be None with gather_kv_indices, got str"),
    "gradient": (NotImplementedError,
                 {"mask_mod": "near[k_idx] > 0", "captures": {"near": torch.ones(3, requires_grad=True)}},
                 "captures['near'] must not require grad, as mask_mod reads it and a condition has no gradient, got "
                 "requires_grad = True"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    kind, more, text = REFUSED[name]
    with pytest.raises(kind) as error:
        attend(**more)
    assert text in str(error.value) and str(error.value).startswith("attention: ")


@pytest.mark.gpu
def test_masks_of_the_host_are_refused_beside_arrays_of_a_device(gpu):
    index = next(i for i, device in enumerate(_core.devices()) if device["backend"] == "level_zero")
    put = UsmArrays(_core.new_queue(index), on_gpu=True).put
    q = put(Values.of(np.ones((1, 90, 2, 64), np.float32), "bfloat16"))
    for mask in (np.ones((1, 1, 2, 2), bool), torch.ones(1, 1, 2, 2, dtype=torch.bool), lists(LISTED[..., :2])):
        with pytest.raises(
            ValueError, match="^flash_attn_func: block_mask must be on the device of q .*, got host memory"
        ):
            xeflash.flash_attn_func(q, q, q, block_mask=mask, block_size=64)
    bools = put(Values.of(np.ones((1, 1, 2, 2), bool), "bool"))  # memory alone
    with pytest.raises(
        TypeError, match="^flash_attn_func: block_mask must be a torch tensor, or have __array_namespace__"
    ):
        xeflash.flash_attn_func(q, q, q, block_mask=bools, block_size=64)


def test_chunks_of_0_are_off():
    for more in ({"block_mask": LISTED, "block_size": 64}, TEXT):
        torch.testing.assert_close(attend(attention_chunk=np.int64(0), **more), attend(**more))


def test_words_are_the_callers():
    flash = [x.transpose(1, 2) for x in (Q, K, V)]
    with pytest.raises(
        ValueError, match=r"^flash_attn_func: block_sparse_tensors must have shape \[1 or 2, 1 or 4, 2, 3\]"
    ):
        xeflash.flash_attn_func(*flash, block_sparse_tensors=LISTED[..., :1], block_size=64)
    with pytest.raises(ValueError, match="block_sparse_tensors must be None if block_mask is given"):
        xeflash.flash_attn_func(*flash, block_sparse_tensors=LISTED, block_mask=LISTED, block_size=64)
    with pytest.raises(NotImplementedError, match="block_sparse_tensors_bwd must be None"):
        xeflash.flash_attn_func(*flash, block_sparse_tensors_bwd=(COUNTS, INDICES))
    starts = torch.tensor([0, 90, 180]).int()
    packed = [x.transpose(1, 2).flatten(0, 1)[:180] for x in (Q, K, V)]
    with pytest.raises(NotImplementedError, match="mask_mod must not come with seqused_q, got str"):
        xeflash.flash_attn_varlen_func(*packed, starts, starts, 90, 90, seqused_q=starts[1:] // 90, mask_mod="true")


def test_blocks_of_packed_sequences_are_those_of_the_longest():
    """Also where that is said to be longer than all tokens."""
    starts = torch.tensor([0, 20, 90]).int()
    q, k, v = (x[0].transpose(0, 1)[:90] for x in (Q, K, V))
    for longest in (70, 90, 4000):
        listed = drawn(-(-longest // 32), -(-longest // 16), 2, 1)[0]
        out = xeflash.flash_attn_varlen_func(
            q, k, v, starts, starts, longest, longest, block_mask=listed, block_size=(32, 16)
        )
        for b, (start, end) in enumerate([(0, 20), (20, 90)]):
            n, part = end - start, [x[None, start:end].transpose(1, 2) for x in (q, k, v)]
            seen = listed[b].repeat_interleave(32, -2).repeat_interleave(16, -1)[..., :n, :n]
            want = xeflash.attention(*part, attn_mask=seen, enable_gqa=True)
            torch.testing.assert_close(out[start:end].transpose(0, 1), want[0])
