"""Queries, keys and values in 8 bits: arrays that kernels do not read as they are become bf16, times their scales."""

from __future__ import annotations

import sys
from numbers import Real
from typing import Any, cast

from xeflash.call.call import Call
from xeflash.call.values import as_number, shown

_SCALES = frozenset(("k_scale", "v_scale"))
_LEAST, _MOST = 2.0**-149, (2 - 2.0**-23) * 2.0**127  # the range of positive numbers in float32


def query_in_16_bits(call: Call) -> Call:
    """Replaces a float8 q by its values in bf16, multiplied by q_scale."""
    q, scale = call.arguments["q"], call.arguments.get("q_scale")
    if in_8_bits(q) and (scale is not None or hasattr(q, "is_floating_point")):  # else the call is refused
        heads = call["k_cache" if "k_cache" in call else "k"]
        return call.with_("q_scale", q=_in_16_bits(call, "q", scale, heads, call.get("cu_seqlens_q")))
    if scale is not None:
        raise _without_8_bits(call, "q")
    return call.with_("q_scale") if "q_scale" in call.arguments else call


def without_scales(call: Call) -> Call:
    """Removes k_scale and v_scale from a call whose k and v are not in 8 bits; refuses scales that are given."""
    if _SCALES.isdisjoint(call.arguments):
        return call
    for name in "kv":
        if call.get(f"{name}_scale") is not None:
            raise _without_8_bits(call, name)
    return call.with_(*_SCALES)


def packed_in_16_bits(call: Call) -> Call:
    """Replaces q, k and v in 8 bits by their values in bf16, multiplied by their scales."""
    call = query_in_16_bits(call)
    starts = call.arguments.get("cu_seqlens_k")
    for name, scale_name in (("k", "k_scale"), ("v", "v_scale")):
        if in_8_bits(call.arguments[name]):
            call = call.with_(**{name: _in_16_bits(call, name, call.get(scale_name), call[name], starts)})
        elif call.arguments.get(scale_name) is not None:
            raise _without_8_bits(call, name)
    return call if _SCALES.isdisjoint(call.arguments) else call.with_(*_SCALES)


def in_8_bits(x: Any) -> bool:
    """Returns whether the elements of an array have one byte each."""
    return getattr(getattr(x, "dtype", None), "itemsize", 0) == 1


def _without_8_bits(call: Call, name: str) -> Exception:
    scale = f"{name}_scale"
    return call.refuse(scale, f"must be None unless {name} is in 8 bits", shown(call[scale]))


def _in_16_bits(call: Call, name: str, scale: Any, heads: Any, starts: Any) -> Any:
    """Returns q, k or v (B, S, H, D), or (tokens, H, D) with `starts`, in bf16.

    A scale (B, Hk) has the heads of `heads`.
    """
    x, scale_name = call[name], f"{name}_scale"
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor):
        raise call.refuse(name, "in 8 bits must be a torch tensor", type(x).__name__, NotImplementedError)
    if not x.is_floating_point() and (x.dtype is not torch.int8 or name == "q"):
        kinds = "a floating type" if name == "q" else "int8 or a floating type"
        got = f"{x.dtype}; {call.word(name)}.shape = {list(x.shape)}"
        raise call.refuse(name, f"must be of {kinds}", got, TypeError)
    scale = as_number(call.function, scale_name, scale)
    if scale is None:
        if not x.is_floating_point():
            raise call.refuse(scale_name, "must be given with int8", None)
        return x.to(torch.bfloat16)
    if isinstance(scale, Real) and not isinstance(scale, bool):
        if not _LEAST <= cast("float", scale) <= _MOST:
            raise call.refuse(scale_name, "must be positive and finite in float32", scale)
        return x.to(torch.bfloat16).mul_(float(scale))
    _check_scale(call, name, scale, torch)
    packed = starts is not None
    heads_shape: tuple[int, ...] = tuple(getattr(heads, "shape", ()))
    starts = _read_starts(starts, x.device, torch) if packed else None
    heads_k = heads_shape[-2] if len(heads_shape) > 1 else 0
    if x.ndim != 4 - packed or (packed and starts is None) or not heads_k or x.shape[-2] % heads_k:
        return x.to(torch.bfloat16)  # the call is refused, or there are no sequences
    batch = len(starts) - 1 if packed else len(x)
    fits = scale.ndim == 2 and scale.shape[0] in (1, batch) and scale.shape[1] in (1, heads_k)
    if not (fits or scale.numel() == 1):
        rule = f"must broadcast to [{batch}, {heads_k}] (sequences, heads of k)"
        raise call.refuse(scale_name, rule, list(scale.shape))
    scale = scale.reshape(1, 1) if scale.numel() == 1 else scale
    if scale.shape[1] > 1:
        scale = scale.repeat_interleave(x.shape[-2] // heads_k, 1)
    if not packed:
        return x.to(torch.bfloat16).mul_(scale[:, None, :, None])
    if scale.shape[0] > 1:
        tokens = torch.arange(x.shape[0], device=x.device, dtype=torch.int32)
        sequence = torch.searchsorted(starts[1:].contiguous(), tokens, right=True)
        scale = scale[sequence.clamp_(max=batch - 1)]
    return x.to(torch.bfloat16).mul_(scale[:, :, None])


def _check_scale(call: Call, name: str, scale: Any, torch: Any) -> None:
    x, scale_name = call[name], f"{name}_scale"
    is_tensor = isinstance(scale, torch.Tensor)
    if not is_tensor or scale.dtype is not torch.float32 or scale.is_nested or scale.layout is not torch.strided:
        got = f"{scale.dtype}, {scale.layout}" if is_tensor else type(scale).__name__
        raise call.refuse(scale_name, "must be a number or a dense float32 tensor", got, TypeError)
    if scale.device != x.device:
        raise call.refuse(scale_name, f"must be on the device of {call.word(name)} ({x.device})", scale.device)


def _read_starts(starts: Any, device: Any, torch: Any) -> Any:
    """Returns the starts of sequences as a tensor on `device`, or None for starts that will be refused."""
    if not isinstance(starts, torch.Tensor):
        if not hasattr(starts, "__array__"):
            return None
        starts = torch.tensor(starts)
    fits = starts.ndim == 1 and len(starts) > 1 and starts.dtype is torch.int32 and starts.device == device
    return starts if fits else None
