"""Weights of 4 bits as checkpoints have them, packed for ``linear``."""

from __future__ import annotations

from numbers import Real
from typing import Any, NamedTuple

from xeflash.api.products.int4_arrays import cast, contiguous, packed, places, stable_order
from xeflash.api.products.int4_formats import FUNCTION, need, read

_GROUPS = (32, 64, 128)


class Int4Weight(NamedTuple):
    """A weight (N, K) of 4 bits; its fields are arguments of ``linear``, which takes ``**weight._asdict()``."""

    weight: Any  # uint8 (N, ceil(K / 128) * 64)
    scales: Any  # (G, N)
    zeros: Any  # int8 (G, N); None: all are 8
    group: int | None  # inputs that share a scale; None: all
    order: Any  # the input that each column belongs to, (K,); None: its own


def pack_int4(*, format: str | None = None, group: int | None = None, bits: int = 4, **tensors: Any) -> Int4Weight:
    """Packs the 4-bit weight of a linear layer, as tensors of a checkpoint hold it, for ``linear``.

    Args:
        format: one of the names below; it is needed where neither names nor shapes nor values of tensors tell it.
        group: how many inputs share a scale: 32, 64 or 128, or -1 for all. Shapes decide it; a given number is compared
            with them.
        bits: must be 4.
        tensors: torch tensors, of one device, or numpy arrays, by the names that the format has for them:

            gptq                qweight, scales, optional: qzeros, g_idx. Zeros are stored less 1, unless all are 8.
            gptq_v2             the same, with zeros as they are
            awq                 qweight, qzeros, scales, in AWQ's GEMM form
            compressed-tensors  weight_packed, weight_scale, optional: weight_shape, weight_zero_point, weight_g_idx
            plain_int32         torchao's qdata, scale, zero_point, optional: shape
            tile_packed_to_4d   torchao's qdata, scale_and_zero, optional: shape; zeros must be multiples of scales
            plain               q (N, K) in 0..15, scales (G, N) or (N,), optional: zeros alike, g_idx (K,)

    Tensors that are None count as not given. If g_idx puts inputs into other groups than their places do (act-order),
    columns are sorted by group, and ``order`` says where they were.

    >>> import numpy as np, xeflash
    >>> q, scales = np.arange(256).reshape(2, 128) % 16, np.ones((4, 2), np.float32)
    >>> packed = xeflash.pack_int4(q=q, scales=scales)
    >>> packed.weight.shape, packed.group
    ((2, 64), 32)
    """
    if not isinstance(bits, Real) or bits != 4:
        raise ValueError(f"{FUNCTION}: bits must be 4, got {bits!r}")
    if group is not None and not (isinstance(group, Real) and group in (*_GROUPS, -1)):
        raise ValueError(f"{FUNCTION}: group must be 32, 64, 128, or -1 for whole rows, got {group!r}")
    plain = read(format, {name: array for name, array in tensors.items() if array is not None})
    outputs, inputs = plain.q.shape
    groups = len(plain.scales)
    if not outputs or not inputs:
        raise ValueError(f"{FUNCTION}: the weight must have an element, got the shape {[outputs, inputs]}")
    found = group_of(inputs, groups)
    if group is not None and group != (found or -1) and not (found is None and group >= inputs):
        raise ValueError(
            f"{FUNCTION}: group must be {found or -1}, as {groups} groups of {inputs} inputs have, got {group}"
        )
    q, order = plain.q, None
    if plain.g_idx is not None:
        order = order_of(plain.g_idx, inputs, found)
        if order is not None:
            q = q[:, order]
    return Int4Weight(packed(q), contiguous(plain.scales), _zeros(plain.zeros), found, order)


def group_of(inputs: int, groups: int) -> int | None:
    """Returns the inputs of a group, or None if there is one group for all inputs."""
    if groups == 1:
        return None
    for group in _GROUPS:
        if -(-inputs // group) == groups:
            return group
    raise ValueError(
        f"{FUNCTION}: scales must be those of groups of 32, 64, 128 or all inputs ({inputs}), "
        f"got {groups} groups; weights must have 4 bits"
    )


def order_of(g_idx: Any, inputs: int, group: int | None) -> Any:
    """Returns the order of columns that sorts them by group, or None if they are sorted."""
    need("g_idx", g_idx, 1, "int32", "int64")
    if len(g_idx) != inputs:
        raise ValueError(f"{FUNCTION}: g_idx must have an entry for each of {inputs} inputs, got {len(g_idx)}")
    want = places(g_idx) // (group or inputs)
    if bool((g_idx == want).all()):
        return None
    order = stable_order(g_idx)
    if not bool((g_idx[order] == want).all()):
        raise ValueError(
            f"{FUNCTION}: g_idx must name each group {group or inputs} times, and the last group for the "
            f"remaining ones of {inputs} inputs, got groups {int(g_idx.min())}..{int(g_idx.max())} in other numbers"
        )
    return order


def _zeros(zeros: Any) -> Any:
    if zeros is None or bool((zeros == 8).all()):
        return None
    low, high = int(zeros.min()), int(zeros.max())
    if low < -128 or high > 127:
        raise ValueError(f"{FUNCTION}: zeros must be in -128..127, got {low}..{high}")
    return contiguous(cast(zeros, "int8"))
