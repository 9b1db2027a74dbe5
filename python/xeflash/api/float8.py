"""Queries, keys and values in 8 bits: what kernels do not read as it is becomes bf16 first, times its scale."""

from __future__ import annotations

import sys
from numbers import Real
from typing import Any, cast

from xeflash.call.values import as_number, shown

_LEAST, _MOST = 2.0**-149, (2 - 2.0**-23) * 2.0**127  # of positive numbers in float32


def take_query(function: str, given: dict[str, Any]) -> None:
    """Puts q in bf16 in the place of one in float8, and takes its scale."""
    scale = given.pop("q_scale", None)
    if in_8_bits(given["q"]) and (scale is not None or hasattr(given["q"], "is_floating_point")):  # else it is refused
        heads = given["k_cache" if "k_cache" in given else "k"]
        given["q"] = _in_16_bits(function, "q", given["q"], scale, heads, given.get("cu_seqlens_q"))
    elif scale is not None:
        _refuse_scale(function, "q", scale)


def dense_in_8_bits(function: str, given: dict[str, Any]) -> bool:
    """Whether k is read as a quantised cache; without it there are no scales."""
    if in_8_bits(given["k"]):
        return True
    take_query(function, given)
    for name in "kv":
        if (scale := given.pop(f"{name}_scale", None)) is not None:
            _refuse_scale(function, name, scale)
    return False


def packed_in_8_bits(function: str, given: dict[str, Any]) -> None:
    """Puts q, k and v in bf16 in the place of those in 8 bits, and takes their scales."""
    take_query(function, given)
    starts = given.get("cu_seqlens_k")
    for name in "kv":
        scale = given.pop(f"{name}_scale", None)
        if in_8_bits(given[name]):
            given[name] = _in_16_bits(function, name, given[name], scale, given[name], starts)
        elif scale is not None:
            _refuse_scale(function, name, scale)


def in_8_bits(x: Any) -> bool:
    """Whether its elements are a byte each."""
    return getattr(getattr(x, "dtype", None), "itemsize", 0) == 1


def _refuse_scale(function: str, name: str, scale: Any) -> None:
    raise ValueError(f"{function}: {name}_scale must be None unless {name} is in 8 bits, got {shown(scale)}")


def _in_16_bits(function: str, name: str, x: Any, scale: Any, heads: Any, starts: Any) -> Any:
    """x (B, S, H, D), or (tokens, H, D) with `starts`, in bf16; a scale (B, Hk) has the heads of `heads`."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(x, torch.Tensor):
        raise NotImplementedError(f"{function}: {name} in 8 bits must be a torch tensor, got {type(x).__name__}")
    if not x.is_floating_point() and (x.dtype is not torch.int8 or name == "q"):
        kinds = "a floating type" if name == "q" else "int8 or a floating type"
        raise TypeError(f"{function}: {name} must be of {kinds}, got {x.dtype}; {name}.shape = {list(x.shape)}")
    scale = as_number(function, f"{name}_scale", scale)
    if scale is None:
        if not x.is_floating_point():
            raise ValueError(f"{function}: {name}_scale must be given with int8, got None")
        return x.to(torch.bfloat16)
    if isinstance(scale, Real) and not isinstance(scale, bool):
        if not _LEAST <= cast("float", scale) <= _MOST:
            raise ValueError(f"{function}: {name}_scale must be positive and finite in float32, got {scale}")
        return x.to(torch.bfloat16).mul_(float(scale))
    _check_scale(function, name, x, scale, torch)
    packed = starts is not None
    of_heads: tuple[int, ...] = tuple(getattr(heads, "shape", ()))
    starts = _read_starts(starts, x.device, torch) if packed else None
    heads_k = of_heads[-2] if len(of_heads) > 1 else 0
    if x.ndim != 4 - packed or (packed and starts is None) or not heads_k or x.shape[-2] % heads_k:
        return x.to(torch.bfloat16)  # the call is refused, or there are no sequences
    batch = len(starts) - 1 if packed else len(x)
    fits = scale.ndim == 2 and scale.shape[0] in (1, batch) and scale.shape[1] in (1, heads_k)
    if not (fits or scale.numel() == 1):
        raise ValueError(
            f"{function}: {name}_scale must broadcast to [{batch}, {heads_k}], a sequence and a head of k, "
            f"got {list(scale.shape)}"
        )
    scale = scale.reshape(1, 1) if scale.numel() == 1 else scale
    if scale.shape[1] > 1:
        scale = scale.repeat_interleave(x.shape[-2] // heads_k, 1)
    if not packed:
        return x.to(torch.bfloat16).mul_(scale[:, None, :, None])
    if scale.shape[0] > 1:
        tokens = torch.arange(x.shape[0], device=x.device, dtype=torch.int32)
        of_token = torch.searchsorted(starts[1:].contiguous(), tokens, right=True)
        scale = scale[of_token.clamp_(max=batch - 1)]
    return x.to(torch.bfloat16).mul_(scale[:, :, None])


def _check_scale(function: str, name: str, x: Any, scale: Any, torch: Any) -> None:
    is_tensor = isinstance(scale, torch.Tensor)
    if not is_tensor or scale.dtype is not torch.float32 or scale.is_nested or scale.layout is not torch.strided:
        got = f"{scale.dtype}, {scale.layout}" if is_tensor else type(scale).__name__
        raise TypeError(f"{function}: {name}_scale must be a number or a dense float32 tensor, got {got}")
    if scale.device != x.device:
        raise ValueError(f"{function}: {name}_scale must be on the device of {name} ({x.device}), got {scale.device}")


def _read_starts(starts: Any, device: Any, torch: Any) -> Any:
    """As a tensor; None if the call is to be refused for them, or there is nothing to scale."""
    if not isinstance(starts, torch.Tensor):
        if not hasattr(starts, "__array__"):
            return None
        starts = torch.tensor(starts)
    fits = starts.ndim == 1 and len(starts) > 1 and starts.dtype is torch.int32 and starts.device == device
    return starts if fits else None
