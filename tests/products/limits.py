"""Which tokens the limits of sample leave."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """What sample is asked for."""

    dtype: str = "fp32"
    rows: int = 3
    vocabulary: int = 1000
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    softcap: float = 0.0
    logit_scale: float = 1.0
    min_p_last: bool = False
    kind: str = "torch"
    strided: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """Its limits, by the names that they have there."""
        names = ("temperature", "top_k", "top_p", "min_p", "softcap", "logit_scale", "min_p_last")
        return {name: getattr(self, name) for name in names}

    def wider(self, by: float) -> Case:
        """Limits of shares that leave more, or less."""
        top_p = self.top_p if self.top_p >= 1 else min(1.0, max(0.0, self.top_p + by))
        return self._replace(top_p=top_p, min_p=self.min_p * (1 - by))


def kept(z: np.ndarray, case: Case, slack: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Which tokens of a row stay, and their weights: what vLLM's sampler does in its order, and Transformers'
    processors in theirs. `slack`: how far limits give way, in logarithms of probabilities."""
    z = z.astype(np.float64) * case.logit_scale
    z = case.softcap * np.tanh(z / case.softcap) if case.softcap else z
    z = z / case.temperature
    stays = z > -np.inf

    def by_min_p() -> np.ndarray:
        return stays & (z >= z.max() + np.log(case.min_p) - slack) if case.min_p else stays

    if not case.min_p_last:
        stays = by_min_p()
    if 0 < case.top_k < len(z):
        kth = np.sort(np.where(stays, z, -np.inf))[-case.top_k]
        stays = stays & (z >= kth - slack)
    p = np.where(stays, np.exp(z - z.max()), 0)
    p /= p.sum() or 1.0
    if case.top_p < 1 and stays.any():
        order = np.argsort(p, kind="stable")
        above = np.cumsum(p[order]) > 1 - case.top_p
        above[-1] = True
        stays = stays & (p >= p[order][above].min() * np.exp(-slack))
    if case.min_p_last:
        stays = by_min_p()
    return stays, np.exp(z - z.max())
