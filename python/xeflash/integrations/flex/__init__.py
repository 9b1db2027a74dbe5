"""torch's flex_attention by xeflash: functions of Python that change and hide scores become parts of its kernels.

    from xeflash.integrations import flex

    out = flex.flex_attention(query, key, value, score_mod, block_mask)    # torch's arguments and results

    with flex.use_xeflash():              # this thread; or enable() and disable(): all threads
        model(tokens)                     # code that calls torch's own flex_attention, eager or compiled

A score_mod and a mask_mod are traced once, and written as snippets of C++. Tensors that they capture are read by the
kernel, and get gradients if they require them. Numbers that they capture are arguments of the kernel, so that another
window compiles nothing. Blocks that a BlockMask does not list are left out. Gradients are there on CPUs, too, where
torch has none.

While the switch is on, calls of ``torch.nn.attention.flex_attention.flex_attention`` come here, also those of code that
imported the function before, and those that torch.compile traces while it is on (what was compiled before stays what it
was). What xeflash does not have goes on to torch's own: float64, greatest scores, subclasses, function transforms, and
functions that no snippet says; ``calls`` counts which way calls went. ``flex_attention`` of this module raises Refused
with the reason. Once this module is imported, torch keeps no graphs with flex_attention on disk.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as _of_torch

from xeflash.integrations._from_torch import Calls, are_plain
from xeflash.integrations.flex.attend import attend
from xeflash.integrations.flex.blocks import Blocks
from xeflash.integrations.flex.expressions import Refused
from xeflash.integrations.flex.kept import snippet_of
from xeflash.integrations.flex.route import MARK, switch

__all__ = ["Refused", "calls", "disable", "enable", "flex_attention", "use_xeflash"]

_OPTIONS = {*_of_torch.FlexKernelOptions.__annotations__, "FORCE_USE_FLEX_ATTENTION"}


def calls() -> Calls:
    """Returns the counts of torch's calls; a compiled function counts when it is traced."""
    return switch.calls()


def enable() -> None:
    """Sends torch's calls of all threads to xeflash, until ``disable``."""
    switch.enable()


def disable() -> None:
    """Undoes ``enable``; open contexts of ``use_xeflash`` stay in force."""
    switch.disable()


def use_xeflash() -> contextlib.AbstractContextManager[None]:
    """Sends torch's calls of this thread (or asynchronous task) to xeflash.

    >>> import torch
    >>> from torch.nn.attention.flex_attention import flex_attention
    >>> from xeflash.integrations import flex
    >>> q = torch.ones(1, 2, 5, 64)
    >>> with flex.use_xeflash():
    ...     out = flex_attention(q, q, q)
    """
    return switch.here()


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: float | None = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any:
    """Computes attention whose scores Python functions change and hide, as torch's flex_attention does.

    Args:
        query: (B, Hq, Sq, D).
        key, value: (B, Hk, Sk, D) and (B, Hk, Sk, Dv); B may be 1 where block_mask has the batch of the query.
        score_mod: a function of (score, batch, head, q_idx, kv_idx) that returns the changed score.
        block_mask: a BlockMask of torch; its mask_mod, a function of (batch, head, q_idx, kv_idx), hides keys.
        scale: factor of the scores, 1 / sqrt(D) by default.
        enable_gqa: whether there may be fewer heads of keys than of queries.
        return_lse: whether to return the LSE (B, Hq, Sq), too.
        kernel_options: torch's options, which choose among its kernels and say nothing here.
        return_aux: torch's AuxRequest of the LSE; the result is then (out, AuxOutput).

    Raises:
        Refused: a function that no snippet of C++ can say, with the reason, or the greatest scores.
    """
    for name in kernel_options or {}:
        if name not in _OPTIONS:
            raise ValueError(f"flex_attention: kernel_options must be {sorted(_OPTIONS)}, got {name!r}")
    if torch.compiler.is_dynamo_compiling():
        options = {**(kernel_options or {}), MARK: True}
        return _of_torch.flex_attention(
            query, key, value, score_mod, block_mask, scale, enable_gqa, return_lse, options, return_aux=return_aux
        )
    _check(query, key, value, block_mask, enable_gqa, return_lse, return_aux)
    changes = None if score_mod is None else snippet_of(score_mod, True, query.device)
    hides = blocks = None
    if block_mask is not None:
        blocks = Blocks(
            block_mask.kv_num_blocks, block_mask.kv_indices, block_mask.full_kv_num_blocks,
            block_mask.full_kv_indices, block_mask.BLOCK_SIZE, block_mask.seq_lengths,
        )  # fmt: skip
        hides = None if block_mask.mask_mod is None else snippet_of(block_mask.mask_mod, False, query.device)
    wants_lse = bool(return_lse or (return_aux is not None and return_aux.lse))
    out, lse = attend(query, key, value, changes, hides, blocks, scale, wants_lse)
    if return_aux is not None:
        return out, _of_torch.AuxOutput(lse=lse)
    return (out, lse) if return_lse else out


def _check(
    query: Tensor, key: Tensor, value: Tensor, block_mask: Any, enable_gqa: bool, return_lse: bool, return_aux: Any
) -> None:
    """Checks what attention does not check, or names otherwise."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        if not isinstance(x, Tensor) or x.dim() != 4:
            got = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(f"flex_attention: {name} must be a tensor (batch, heads, rows, head dim), got {got}")
    if not are_plain(query, key, value):
        rule = "must be dense tensors of one dtype, float32, float16 or bfloat16, outside of function transforms"
        got = ", ".join(f"{type(x).__name__} of {x.dtype}" for x in (query, key, value))
        raise Refused(f"flex_attention: query, key and value {rule}, got {got}")
    if not enable_gqa and query.shape[1] != key.shape[1]:
        heads = f"{query.shape[1]} and {key.shape[1]}"
        raise ValueError(f"flex_attention: query and key must have as many heads without enable_gqa, got {heads}")
    for name, x, kind in (("block_mask", block_mask, "BlockMask"), ("return_aux", return_aux, "AuxRequest")):
        if x is not None and not isinstance(x, getattr(_of_torch, kind)):
            raise TypeError(f"flex_attention: {name} must be a {kind} of torch, got {type(x).__name__}")
    if return_lse and return_aux is not None:
        raise ValueError("flex_attention: return_lse must be False beside return_aux, got True")
    if return_aux is not None and return_aux.max_scores:
        raise Refused("flex_attention: return_aux must not ask for max_scores, got True")
