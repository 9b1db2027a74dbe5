"""The blocks of a BlockMask, and their bits by an operator, which compiled graphs call in the place of many steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from xeflash.api.attention.blocks import with_blocks
from xeflash.call.call import Call
from xeflash.call.schema import BHSD
from xeflash.torch_ops.library import register

_ONE_BLOCK = 1 << 30  # the sides of the block that torch makes where there is no mask


class Blocks(NamedTuple):
    """The fields of a BlockMask that attention reads; its mask_mod is a snippet beside it."""

    kv_num_blocks: Tensor
    kv_indices: Tensor
    full_kv_num_blocks: Tensor | None
    full_kv_indices: Tensor | None
    BLOCK_SIZE: tuple[int, int]
    seq_lengths: tuple[Any, Any]
    mask_mod: None = None


def with_bits(call: Call, blocks: Blocks | None) -> Call:
    """Adds the bits of blocks to a call."""
    if blocks is None or min(blocks.BLOCK_SIZE) >= _ONE_BLOCK:
        return with_blocks(call)
    made = call.with_(block_mask=blocks)
    if type(call["q"]) not in (FakeTensor, FunctionalTensor):
        return with_blocks(made)
    q, k, partial = call["q"], call["k"], "mask_mod" in call
    sizes = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    bits = _OPERATOR(*blocks[:4], sizes, blocks.BLOCK_SIZE, blocks.seq_lengths, partial)
    rows, keys = (side & -side for side in blocks.BLOCK_SIZE)
    return call.with_(words={"blocks": "block_mask"}, blocks=bits, block_rows=rows, block_keys=keys)


def _bits(
    counts: Tensor, indices: Tensor, full_counts: Tensor | None, full_indices: Tensor | None, sizes: Sequence[Any],
    block_size: Sequence[Any], lengths: Sequence[Any], partial: bool, **_: Any,
) -> Tensor:  # fmt: skip
    batch, heads, rows, keys = sizes
    q, k = (counts.new_empty(()).expand(batch, heads, n, 1) for n in (rows, keys))
    size, of_call = (block_size[0], block_size[1]), (lengths[0], lengths[1])
    given: dict[str, Any] = {"function": "flex_attention", "layout": BHSD, "q": q, "k": k}
    given |= {"block_mask": Blocks(counts, indices, full_counts, full_indices, size, of_call)}
    bits: Tensor = with_blocks(Call(given | {"mask_mod": ""} if partial else given))["blocks"]
    return bits.clone()  # a graph may write to what it was given


_OPERATOR = register(
    "block_bits(Tensor counts, Tensor indices, Tensor? full_counts, Tensor? full_indices, SymInt[] sizes, "
    "SymInt[] block_size, SymInt[] lengths, bool partial) -> Tensor",
    _bits,
    _bits,
    function="flex_attention",
)
