"""Words of 32 bits, made of bools, as kernels read them."""

from __future__ import annotations

from typing import Any

WORD = 32
_BOOL = ("bool", "bool_")


def dtype_of(array: Any) -> str:
    """Returns the name of an array's type, or nothing where it has none."""
    return str(getattr(array, "dtype", "")).rpartition(".")[2]


def are_bools(array: Any) -> bool:
    """Returns whether an array is one of bools."""
    return dtype_of(array) in _BOOL


def in_words(xp: Any, bools: Any) -> Any:
    """Packs bools (..., n) into int32 (..., ceil(n / 32)): bit i % 32 of word i // 32; `xp` is their namespace."""
    (*lead, count), more = bools.shape, -bools.shape[-1] % WORD
    if xp.__name__ == "numpy":
        padded = xp.ascontiguousarray(xp.pad(bools, (*[(0, 0)] * len(lead), (0, more))))
        return xp.packbits(padded, axis=-1, bitorder="little").view(xp.int32)
    bools = xp.concat([bools, xp.zeros((*lead, more), dtype=bools.dtype, device=bools.device)], axis=-1)
    bits = 1 << xp.arange(WORD, dtype=xp.int32, device=bools.device)
    words = xp.where(bools.reshape((*lead, (count + more) // WORD, WORD)), bits, xp.zeros_like(bits))
    return xp.sum(words, axis=-1, dtype=xp.int32)
