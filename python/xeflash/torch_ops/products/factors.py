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
        of_loss = torch.zeros_like(lse)
    else:
        counts = torch.ones_like(target, dtype=torch.bool)
        if not given.get("log_prob"):
            counts = target != given.get("ignore_index", -100)
        of_loss = dloss.float().reshape(-1)
        if given.get("reduction", "mean") == "mean":
            of_loss = of_loss / (given.get("divisor") or counts.sum())
        if given.get("log_prob"):
            of_loss = -of_loss
        there = (target >= 0) & (target < columns)
        of_loss = torch.where(counts, torch.where(there, of_loss, torch.nan), 0.0).expand(lse.shape)
    of_p = of_loss * (1 + 2 * z_loss * lse) if z_loss else of_loss
    if dlse is not None:
        of_p = of_p + dlse.float().reshape(-1)
    return of_p.contiguous(), (of_loss * (1 - smoothing)).contiguous(), (of_loss * (smoothing / columns)).contiguous()
