"""Terms that IPEX's calls add to scores, and checks of arguments that they share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def refuse(function: str, head_mask: Any = None, beta: float = 1.0) -> None:
    """Refuses head_mask and beta, which IPEX's kernels took and did not use."""
    if head_mask is not None:
        raise NotImplementedError(f"{function}: head_mask must be None, got {type(head_mask).__name__}")
    if beta != 1:
        raise NotImplementedError(f"{function}: beta must be 1, got {beta}")


def require_4d(function: str, **tensors: Tensor) -> None:
    """Checks that tensors have 4 dimensions, before shapes are read; the kernels' own checks come later."""
    for name, x in tensors.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{function}: {name} must be a torch tensor, got {type(x).__name__}")
        if x.dim() != 4:
            raise ValueError(f"{function}: {name} must have 4 dimensions, got shape {list(x.shape)}")


def added_to_scores(query: Tensor, keys: int, alibi: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """Returns the sum that is added to scores (B, H, Sq, keys), cut to the keys, as both terms may be padded."""
    batch, heads = query.shape[:2]
    terms = []
    for x in (alibi, bias):
        if x is not None:
            x = x.view(batch, heads, *x.shape[1:]) if x.dim() == 3 and x.shape[0] == batch * heads else x
            terms.append(x[..., :keys] if x.shape[-1] > 1 else x)
    if not terms:
        return None
    if len(terms) == 1:
        fits = terms[0].dtype in (torch.bool, torch.float32, query.dtype)
        return terms[0] if fits else terms[0].float()
    alibi, bias = terms
    if bias.dtype is torch.bool:
        return torch.where(bias, alibi.float(), -torch.inf)
    return alibi.float() + bias.float()


def per_head(alibi: Tensor | None, query: Tensor) -> Tensor | None:
    """Reshapes alibi (B H, 1, S) to (B, H, 1, S)."""
    if alibi is None or alibi.dim() == 4:
        return alibi
    return alibi.reshape(query.shape[0], query.shape[2], *alibi.shape[-2:])


def as_float(mask: Tensor) -> Tensor:
    """Returns the term that a mask adds to scores; in a boolean mask True takes part."""
    return torch.where(mask, 0.0, -torch.inf) if mask.dtype is torch.bool else mask


def as_score_mod(*added: Tensor | None) -> dict[str, Any]:
    """Returns a score_mod that reads the terms to add; a dimension of size 1 serves every index."""
    names = {f"added_{i}": x for i, x in enumerate(x for x in added if x is not None)}
    if not names:
        return {}
    terms = [f"{name}(b, h, q_idx, k_idx)" for name in names]
    return {"score_mod": " + ".join(["s", *terms]), "captures": names}
