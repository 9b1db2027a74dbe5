"""Factors of the gradients of a head's logits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def factors(
    given: dict[str, Any], target: Tensor, lse: Tensor, columns: int, dloss: Tensor | None, dlse: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes (of_p, of_target, of_all) of each row for the gradients of the loss and the LSE.

    One of dloss and dlse may be None.
    """
    target, lse = target.reshape(-1), lse.reshape(-1)
    smoothing, z_loss = given.get("label_smoothing", 0.0), given.get("z_loss", 0.0)
    if dloss is None:
        loss_factor = torch.zeros_like(lse)
    else:
        counts = torch.ones_like(target, dtype=torch.bool)
        if not given.get("log_prob"):
            counts = target != given.get("ignore_index", -100)
        loss_factor = dloss.float().reshape(-1)
        if given.get("reduction", "mean") == "mean":
            loss_factor = loss_factor / (given.get("divisor") or counts.sum())
        if given.get("log_prob"):
            loss_factor = -loss_factor
        there = (target >= 0) & (target < columns)
        loss_factor = torch.where(counts, torch.where(there, loss_factor, torch.nan), 0.0).expand(lse.shape)
    of_p = loss_factor * (1 + 2 * z_loss * lse) if z_loss else loss_factor
    if dlse is not None:
        of_p = of_p + dlse.float().reshape(-1)
    return (
        of_p.contiguous(),
        (loss_factor * (1 - smoothing)).contiguous(),
        (loss_factor * (smoothing / columns)).contiguous(),
    )
