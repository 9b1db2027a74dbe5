"""Merge of attention over parts of the keys, for shared prefixes (cascades) and keys on several devices."""

from __future__ import annotations

from typing import Any

from xeflash import _core
from xeflash.api.route import operators_for
from xeflash.call.call import Call


def merge_states(*states: Any) -> tuple[Any, Any]:
    """Merges the results of attention over disjoint parts of the keys into (out, lse) over all keys.

    Args:
        states: out and lse of each part in turn, or pairs of them; any number. As the flash_attn functions return
            them: out (B, S, H, D) with lse (B, H, S), or packed: (tokens, H, D) with (H, tokens). An infinite lse: the
            row saw none of the part's keys. One that is NaN makes the row NaN.

    A row that saw no key at all gives 0 and an lse of +inf. Sinks and causal masks belong to one part only.

    >>> import numpy as np, xeflash
    >>> rng = np.random.default_rng(0)
    >>> q = rng.standard_normal((1, 5, 2, 64), np.float32)
    >>> k, v = (rng.standard_normal((1, 30, 2, 64), np.float32) for _ in range(2))
    >>> whole, lse, _ = xeflash.flash_attn_func(q, k, v, return_attn_probs=True)
    >>> cuts = (slice(0, 10), slice(10, 30))
    >>> parts = [xeflash.flash_attn_func(q, k[:, c], v[:, c], return_attn_probs=True)[:2] for c in cuts]
    >>> merged, merged_lse = xeflash.merge_states(*parts)
    >>> bool(np.allclose(merged, whole, atol=1e-6)), bool(np.allclose(merged_lse, lse, atol=1e-5))
    (True, True)
    """
    if states and all(isinstance(state, tuple | list) for state in states):
        for number, state in enumerate(states):
            if len(state) != 2:
                raise ValueError(f"merge_states: state {number} must be (out, lse), got {len(state)} entries")
        states = tuple(array for state in states for array in state)
    if not states or len(states) % 2:
        raise ValueError(f"merge_states: states must be out and lse in turn, got {len(states)} arrays")
    outs, lses = list(states[::2]), list(states[1::2])
    call = Call({"function": "merge_states", "out": outs, "lse": lses})
    out, lse = (operators_for(call, outs[0], lses[0], outs[-1], ("out", "lse")) or _core).merge_states(outs, lses)
    return out, lse
