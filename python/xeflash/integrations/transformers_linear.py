"""Linear layers of models, by xeflash: ``patch(model)`` after loading it, and ``unpatch(model)``.

    model = AutoModelForCausalLM.from_pretrained(...)
    print(patch(model).left)                  # what stays as it is, and why

A layer keeps its class, its parameters and its state_dict; only its forward is replaced. What is served:

  nn.Linear           a weight of fp32, fp16 or bf16; not its subclasses. Tied weights stay tied.
  GPTQModel           GPTQ of 4 and 8 bits, AWQ of 4 bits
  compressed-tensors  4 bits (pack-quantized), int8 and fp8, before the first call of the model, which unpacks it
  torchao             Int4PlainInt32Tensor, Int4TilePackedTo4dTensor with whole zeros, Int8Tensor, Float8Tensor,
                      IntxUnpackedToInt8Tensor
  Transformers        FP8Linear, FbgemmFp8Linear, CompressedTensorsFP8Linear

Weights of 4 bits, and 8 bits of GPTQ, are packed anew, beside what the layer has, so they take their memory twice. What
load_state_dict brings later is packed, too; what else is done to such a weight is seen only after another ``patch``.
Inputs are not quantised: a layer that quantised its inputs, too, gave results that differ by that. Base layers of LoRA
are layers as all others. Experts whose weights lie in one tensor are no linear layers.

``patch(model, loss=True)`` also trains a language model without its logits, see transformers_loss.py; with
``layers=False`` it does only that.

Gradients pass to inputs and biases. In training, autocast, function transforms, and with inputs of other dtypes and
devices, a layer runs its own forward.
"""

from __future__ import annotations

from types import MethodType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

import xeflash
from xeflash.integrations._quantised import Refused, weight_of

__all__ = ["Patched", "patch", "unpatch"]

_FEW_ROWS = 64  # rows for which linear reads W once
_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_TENSORS = (Tensor, nn.Parameter)


class Patched(NamedTuple):
    """The modules that ``patch`` changed or left, by name."""

    swapped: dict[str, str]  # the format, or the dtype, of the weight
    left: dict[str, str]  # why a linear layer keeps its forward
    loss: str | None = None  # the head of which a loss is made without logits


class _Layer:
    """The state of a module whose forward is replaced; it lies in the module's __dict__, so copies have their own."""

    def __init__(self, module: nn.Module, arguments: dict[str, Any] | None) -> None:
        self.take(arguments or {})
        self.before = module.__dict__.get("forward")
        self.hook = None if arguments is None else module.register_load_state_dict_post_hook(_read_anew)

    def take(self, arguments: dict[str, Any]) -> None:
        """Keeps arguments of linear, from `weight` on; without arguments, the module's own weight."""
        self.named = dict(arguments)
        self.weight = self.named.pop("weight", None)

    def own(self, module: nn.Module, x: Any) -> Any:
        """Calls the module's forward as it was before."""
        return type(module).forward(module, x) if self.before is None else self.before(x)

    def move(self, device: torch.device) -> None:
        """Moves the arguments to the device of the inputs."""
        self.weight = self.weight.to(device)
        self.named = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in self.named.items()}


def patch(model: nn.Module, *, layers: bool = True, loss: bool = False) -> Patched:
    """Replaces the forward of linear layers of a model; a layer that is replaced already is read anew.

    Args:
        model: any module; for ``loss`` a language model of Transformers, or what has one in it.
        layers: whether linear layers are replaced.
        loss: whether a language model that trains makes its loss without logits, see ``transformers_loss``.

    >>> import torch
    >>> from xeflash.integrations.transformers_linear import patch, unpatch
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU()).requires_grad_(False)
    >>> patch(model).swapped
    {'0': 'float32'}
    >>> model(torch.ones(2, 64)).shape
    torch.Size([2, 32])
    >>> unpatch(model)
    ['0']
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"patch: model must be a torch.nn.Module, got {type(model).__name__}")
    if not (layers or loss):
        raise ValueError("patch: layers or loss must be True, got layers = False, loss = False")
    unpatch(model)
    if loss:
        _loss().find(model)  # or else nothing is replaced
    done = _patch_layers(model) if layers else Patched({}, {})
    return done._replace(loss=_loss().replace(model)) if loss else done


def _loss() -> Any:
    from xeflash.integrations import transformers_loss

    return transformers_loss


def _patch_layers(model: nn.Module) -> Patched:
    layers: dict[str, tuple[nn.Module, str, dict[str, Any] | None]] = {}
    left: dict[str, str] = {}
    for name, module in model.named_modules():
        try:
            found = _read(module)
        except (NotImplementedError, ValueError, TypeError) as error:
            left[name] = str(error)
            continue
        if found is not None:
            layers[name] = module, *found
    if not layers:
        why = "".join(f"; {name or type(model).__name__}: {reason}" for name, reason in list(left.items())[:3])
        raise ValueError(f"patch: model must have a linear layer that xeflash can run, got none{why}")
    for module, _, arguments in layers.values():
        module.__dict__["_xeflash"] = _Layer(module, arguments)
        module.__dict__["forward"] = MethodType(_forward, module)
    if not any(hasattr(model.get_submodule(name), "quantization_scheme") for name in left):
        _keep_packed(model)
    return Patched({name: what for name, (_, what, _) in layers.items()}, left)


def unpatch(model: nn.Module) -> list[str]:
    """Undoes ``patch`` in a model; returns the names of linear layers that have their own forward again."""
    if any("_xeflash_loss" in module.__dict__ for module in model.modules()):
        _loss().restore(model)
    names = []
    for name, module in model.named_modules():
        layer = module.__dict__.pop("_xeflash", None)
        if layer is not None:
            names.append(name)
            if layer.hook is not None:
                layer.hook.remove()
            if getattr(module.forward, "__func__", None) not in (_forward, type(module).forward):
                continue  # somebody has it inside of his own, where it runs what the class has
            del module.__dict__["forward"]
            if layer.before is not None:
                module.__dict__["forward"] = layer.before
        unpack = module.__dict__.pop("_xeflash_unpack", None)
        if unpack is not None:
            module.ct_decompress_hook = module.register_forward_pre_hook(unpack)
    return names


def _keep_packed(model: nn.Module) -> None:
    """Removes the hook by which compressed-tensors unpacks a whole model in its first call."""
    for module in model.modules():
        handle = module.__dict__.get("ct_decompress_hook")
        if handle is not None:
            module.__dict__["_xeflash_unpack"] = module._forward_pre_hooks[handle.id]
            handle.remove()
            del module.ct_decompress_hook


def _read(module: nn.Module) -> tuple[str, dict[str, Any] | None] | None:
    """Returns the format of a linear layer's weight, and arguments for a quantised one, or None for other modules."""
    weight: Any = getattr(module, "weight", None)
    tensors = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    linear = isinstance(module, nn.Linear) or hasattr(module, "qweight")
    if linear and hasattr(module, "_hf_hook"):
        raise Refused("it has a hook of accelerate, which may bring its tensors")
    if linear and any(x.is_meta for x in tensors):
        raise Refused("its tensors are on the meta device")
    if linear and (away := {x.device.type for x in tensors} - {"cpu", "xpu"}):
        raise Refused(f"its tensors are on {away.pop()}")
    if linear and "forward" in module.__dict__ and not hasattr(module, "quantization_scheme"):
        raise Refused("its forward was replaced by somebody else")
    quantised = weight_of(module)
    if quantised is not None:
        return quantised.format, quantised.arguments
    if type(module) is not nn.Linear:
        if tensors and ("Linear" in type(module).__name__ or hasattr(module, "qweight")):
            raise Refused(f"{type(module).__name__} of {type(module).__module__} is not known here")
        if type(module).__name__ == "Conv1D":
            raise Refused("Conv1D has the inputs of its weight in rows")
        return None
    if type(weight) not in _TENSORS or "weight" not in module._parameters:
        raise Refused(f"its weight is a {type(weight).__name__}, not a parameter")
    if weight.dtype not in _DTYPES or weight.layout is not torch.strided:
        raise Refused(f"its weight is {weight.layout} of {weight.dtype}".replace("torch.", ""))
    return str(weight.dtype).removeprefix("torch."), None


def _read_anew(module: nn.Module, _keys: Any) -> None:
    """Packs the weights that load_state_dict has brought."""
    layer: _Layer | None = module.__dict__.get("_xeflash")
    weight = weight_of(module)
    if layer is not None and weight is not None:
        layer.take(weight.arguments)


def _plain(x: Any) -> bool:
    """Returns whether an input is a dense tensor of our dtypes and devices, seen by no transform and no autocast."""
    if type(x) not in _TENSORS or x.dtype not in _DTYPES or x.device.type not in ("cpu", "xpu"):
        return False
    if x.layout is not torch.strided or torch.is_autocast_enabled(x.device.type):
        return False
    return torch.compiler.is_compiling() or (peek_interpreter_stack() is None and forward_ad._current_level < 0)


def _forward(self: nn.Module, input: Any) -> Any:
    layer: _Layer | None = self.__dict__.get("_xeflash")
    if layer is None:
        return type(self).forward(self, input)
    if not _plain(input):
        return layer.own(self, input)
    bias: Any = self.bias
    if layer.weight is None:
        weight: Any = self.weight
        trains = weight.requires_grad and torch.is_grad_enabled()
        if trains or weight.dtype is not input.dtype or weight.device != input.device:
            return layer.own(self, input)
        if input.shape[:-1].numel() > _FEW_ROWS:  # a prompt: torch's large products are faster
            return layer.own(self, input)
        return xeflash.linear(input, weight, bias)
    if layer.weight.device != input.device:
        layer.move(input.device)
    if bias is not None and (bias.dtype is not input.dtype or bias.device != input.device):
        bias = bias.to(input)
    return xeflash.linear(input, layer.weight, bias, **layer.named)


_forward.__name__ = "forward"  # by this name pickle finds it in a module; in one that it has made, the class's own
