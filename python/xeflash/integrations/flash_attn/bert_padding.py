"""``flash_attn.bert_padding``: rows with padding as packed tokens, and back. torch's own operations, with gradients."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["index_first_axis", "index_put_first_axis", "pad_input", "unpad_input"]


def index_first_axis(input: Tensor, indices: Tensor) -> Tensor:
    """Returns the rows of `input` (rows, ...) that `indices` names."""
    return input[indices]


def index_put_first_axis(values: Tensor, indices: Tensor, first_axis_dim: int) -> Tensor:
    """Returns first_axis_dim rows: `values` at the rows that `indices` names, and 0 at the others."""
    rows = values.new_zeros((first_axis_dim, *values.shape[1:]))
    return rows.index_copy(0, indices, values)


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Packs hidden_states (B, S, ...): returns (tokens, places in B S, cu_seqlens, longest row, tokens of each row).

    Args:
        attention_mask: (B, S), 1 where there is a token.
        unused_mask: (B, S), 1 where there is a token, too, which no row counts as used: the last result leaves it out.
    """
    shape = hidden_states.shape[:2]
    for name, mask in (("attention_mask", attention_mask), ("unused_mask", unused_mask)):
        if mask is not None and (mask.dim() != 2 or mask.shape != shape):
            raise ValueError(
                f"unpad_input: {name} must have the shape (batch, sequence) of hidden_states {list(shape)}, "
                f"got {list(mask.shape)}"
            )
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    lengths = kept.sum(dim=-1, dtype=torch.int32)
    indices = kept.flatten().nonzero().flatten()
    starts = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    tokens = index_first_axis(hidden_states.flatten(0, 1), indices)
    return tokens, indices, starts, int(lengths.max()), used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Puts packed tokens (tokens, ...) back into rows (B, S, ...), with 0 where there is no token."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
