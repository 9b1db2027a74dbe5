"""Weights of other libraries' quantised linear layers, as keywords of ``xeflash.linear``.

Libraries are told by the names of classes, so that none of them has to be there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from xeflash.api.products.int4_arrays import as_bytes
from xeflash.api.products.pack_int4 import group_of, order_of, pack_int4


class Weight(NamedTuple):
    """A weight, and the name of its format."""

    format: str
    arguments: dict[str, Any]  # arguments of linear, from `weight` on


class Refused(NotImplementedError):
    """A layer cannot be replaced; the text says why."""


def weight_of(module: nn.Module) -> Weight | None:
    """Returns the weight of a quantised linear layer, or None for any other module; raises Refused, or as pack_int4."""
    classes = [(c.__module__.partition(".")[0], c.__name__) for c in type(module).__mro__]
    if ("gptqmodel", "BaseQuantLinear") in classes:
        return _from_gptqmodel(module)
    if any(library == "bitsandbytes" for library, _ in classes) and isinstance(module, nn.Linear):
        raise Refused(f"bitsandbytes' {type(module).__name__} has formats that linear does not read")
    if not isinstance(module, nn.Linear):
        return None
    if type(module) is nn.Linear:
        if hasattr(module, "quantization_scheme"):
            return _from_compressed_tensors(module)
        weight = module.weight
        if type(weight).__module__.partition(".")[0] == "torchao":
            return _from_torchao(weight)
        return None
    read = _SUBCLASSES.get(type(module).__name__)
    if read is None or not type(module).__module__.startswith("transformers.integrations."):
        raise Refused(f"{type(module).__name__} is a subclass of nn.Linear, which may do more")
    if module.weight.dtype not in _EIGHT_BITS:
        raise Refused(f"{type(module).__name__} has a weight of {_name(module.weight.dtype)}")
    return read(module)


_EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# ---- GPTQModel ----------------------------------------------------------------------------------

# Classes that keep their tensors as checkpoints have them, at least until their first call.
_GPTQ = {"TorchLinear", "TritonV2Linear", "TorchFusedLinear", "TorchAtenLinear", "TorchCpuAvx512Linear"}
_AWQ = {"AwqTorchLinear", "AwqGEMMLinear", "AwqGEMMTritonLinear"}
_AWQ |= {"TorchFusedAwqLinear", "TorchAtenAwqLinear", "TorchCpuAvx512AwqLinear"}


def _from_gptqmodel(module: Any) -> Weight:
    name = type(module).__name__
    if name not in _GPTQ | _AWQ:
        raise Refused(f"GPTQModel's {name} has a format that linear does not read")
    if module.adapter is not None:
        raise Refused(f"GPTQModel's {name} has an adapter")
    if getattr(module, "online_full_had", False) or getattr(module, "online_partial_had", False):
        raise Refused(f"GPTQModel's {name} rotates its inputs")
    if getattr(module, "_cpu_transformed", False) or str(getattr(module, "linear_mode", None)).endswith("inference"):
        raise Refused(f"GPTQModel's {name} has packed its weight anew, in its first call")
    if name in _AWQ:
        tensors = {x: getattr(module, x) for x in ("qweight", "qzeros", "scales")}
        return Weight("awq", pack_int4(format="awq", bits=module.bits, **tensors)._asdict())
    tensors = {x: getattr(module, x) for x in ("qweight", "qzeros", "scales", "g_idx")}
    # The format stays 1 where nothing was converted.
    version = 2 if module.REQUIRES_FORMAT_V2 else module.qzero_format()
    if module.bits == 8:
        return Weight("gptq", _gptq_of_8_bits(version, module.in_features, **tensors))
    packed = pack_int4(format="gptq" if version == 1 else "gptq_v2", bits=module.bits, **tensors)
    return Weight("gptq", packed._asdict())


def _gptq_of_8_bits(
    version: int, inputs: int, qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor
) -> dict[str, Any]:
    if qweight.dtype is not torch.int32 or qzeros.dtype is not torch.int32:
        raise Refused(f"qweight and qzeros must be of int32, got {_name(qweight.dtype)} and {_name(qzeros.dtype)}")
    zeros = as_bytes(qzeros)[:, : scales.shape[1]].int() + (2 - version) - 128
    if zeros.shape != scales.shape or qweight.shape != (-(-inputs // 4), scales.shape[1]):
        raise Refused(f"qweight, qzeros and scales do not fit: {[list(x.shape) for x in (qweight, qzeros, scales)]}")
    if bool((zeros > 127).any()):
        raise Refused("qzeros has a zero of 256, which does not fit into int8")
    weight = (as_bytes(qweight.T)[:, :inputs] ^ 128).view(torch.int8)
    group = group_of(inputs, len(scales))
    order = order_of(g_idx, inputs, group)
    return {
        "weight": weight.contiguous() if order is None else weight[:, order],
        "scales": scales.detach().contiguous(),
        "zeros": zeros.to(torch.int8) if bool(zeros.any()) else None,
        "group": group,
        "order": order,
    }


# ---- eight bits, as they are --------------------------------------------------------------------


def _eight_bits(weight: Tensor, scales: Tensor, zeros: Tensor | None = None) -> dict[str, Any]:
    """Returns linear's arguments for a weight (N, K) with scales and zeros (N, G) or (N,), or one number for all."""
    outputs, inputs = weight.shape
    parts = []
    for array in (scales, zeros):
        if array is not None:
            array = array.detach()
            array = array.expand(outputs, 1) if array.numel() == 1 else array.reshape(outputs, -1)
        parts.append(None if array is None else array.T.contiguous())
    scales, zeros = parts
    if zeros is not None and not bool(zeros.any()):
        zeros = None
    return {"weight": weight.detach(), "scales": scales, "zeros": zeros, "group": group_of(inputs, len(scales))}


def _from_blocks(module: Any) -> Weight:
    """Reads Transformers' FP8Linear, which has a scale for each block of outputs and inputs, or one for all."""
    weight, scales = module.weight, module.weight_scale_inv.detach().float()
    if scales.numel() > 1:
        outputs, inputs = weight.shape
        rows, columns = module.block_size
        if scales.shape != (-(-outputs // rows), -(-inputs // columns)):
            raise Refused(f"weight_scale_inv must have a scale per {rows} x {columns}, got {list(scales.shape)}")
        scales = scales.repeat_interleave(rows, 0)[:outputs]
    return Weight("fp8", _eight_bits(weight, scales))


def _from_rows(module: Any) -> Weight:
    return Weight("fp8", _eight_bits(module.weight, module.weight_scale))


_SUBCLASSES: dict[str, Callable[[Any], Weight]] = {
    "FP8Linear": _from_blocks,
    "CompressedTensorsFP8Linear": _from_rows,
    "FbgemmFp8Linear": _from_rows,
}


# ---- compressed-tensors -------------------------------------------------------------------------


def _from_compressed_tensors(module: Any) -> Weight:
    scheme = module.quantization_scheme.weights
    if scheme is None or module.quantization_scheme.output_activations is not None:
        raise Refused("compressed-tensors quantises its outputs, or not its weight")
    names = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")
    tensors = {name: getattr(module, name, None) for name in names}
    if tensors["weight_packed"] is not None:
        if scheme.type != "int":
            raise Refused(f"compressed-tensors has a weight of {scheme.num_bits} bits of type {scheme.type}")
        if scheme.num_bits == 8 and tensors["weight_g_idx"] is None:
            return Weight("compressed-tensors", _packed_8_bits(*(tensors[name] for name in names[:4])))
        return Weight("compressed-tensors", pack_int4(bits=scheme.num_bits, **tensors)._asdict())
    if module.weight.dtype not in _EIGHT_BITS:
        raise Refused("compressed-tensors has unpacked its weight: patch it before its first call")
    if tensors["weight_scale"] is None or tensors["weight_g_idx"] is not None:
        raise Refused("compressed-tensors has no scale, or act-order, for 8 bits")
    zeros = tensors["weight_zero_point"]
    if zeros is not None and zeros.dtype is not torch.int8:
        raise Refused(f"compressed-tensors has zeros of {_name(zeros.dtype)}")
    if tensors["weight_scale"].shape not in ((), (1,), (1, 1)) and len(tensors["weight_scale"]) != len(module.weight):
        raise Refused("compressed-tensors has scales of blocks")
    return Weight("compressed-tensors", _eight_bits(module.weight, tensors["weight_scale"], zeros))


def _packed_8_bits(packed: Tensor, scale: Tensor, zeros: Tensor | None, shape: Any) -> dict[str, Any]:
    outputs, inputs = (int(n) for n in shape)
    if packed.dtype is not torch.int32 or packed.shape != (outputs, -(-inputs // 4)):
        raise Refused(
            f"weight_packed must be of int32 with 4 inputs in each, got {list(packed.shape)} of {packed.dtype}"
        )
    if zeros is not None and zeros.dtype is torch.int32:
        zeros = (as_bytes(zeros.T)[:, :outputs] ^ 128).view(torch.int8).T
    weight = (as_bytes(packed)[:, :inputs] ^ 128).view(torch.int8).contiguous()
    return _eight_bits(weight, scale, zeros)


# ---- torchao ------------------------------------------------------------------------------------


def _from_torchao(weight: Any) -> Weight:
    name = type(weight).__name__
    if getattr(weight, "act_pre_scale", None) is not None:
        raise Refused(f"torchao's {name} has a scale for inputs")
    if name == "Int4PlainInt32Tensor":
        tensors = {"qdata": weight.qdata, "scale": weight.scale, "zero_point": weight.zero_point}
        return Weight("plain_int32", pack_int4(shape=tuple(weight.shape), **tensors)._asdict())
    if name == "Int4TilePackedTo4dTensor":
        tensors = {"qdata": weight.qdata, "scale_and_zero": weight.scale_and_zero}
        return Weight("tile_packed_to_4d", pack_int4(shape=tuple(weight.shape), **tensors)._asdict())
    if name in ("Int8Tensor", "Float8Tensor", "IntxUnpackedToInt8Tensor"):
        scale, zeros = weight.scale, getattr(weight, "zero_point", None)
        if weight.qdata.dtype not in _EIGHT_BITS or len(scale) not in (1, len(weight.qdata)):
            raise Refused(f"torchao's {name} has {_name(weight.qdata.dtype)} with scales of {list(scale.shape)}")
        if zeros is not None and zeros.dtype is not torch.int8:
            if bool(zeros.any()):
                raise Refused(f"torchao's {name} has zeros of {_name(zeros.dtype)}")
            zeros = None
        if getattr(weight, "target_dtype", None) is torch.int4 and len(scale) == len(weight.qdata):
            zeros = None if zeros is None else zeros.T + 8
            return Weight(name, pack_int4(q=weight.qdata + 8, scales=scale.T, zeros=zeros)._asdict())
        return Weight(name, _eight_bits(weight.qdata, scale, zeros))
    raise Refused(f"torchao's {name} is a weight that linear does not read")
