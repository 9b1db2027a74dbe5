"""The linear layers of a model by xeflash, with weights that are quantised when the model is loaded."""

from __future__ import annotations

import copy
import itertools
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from xeflash.bench.linear.cases import GROUP
from xeflash.bench.linear.weights import LARGEST, Quantised, quantise
from xeflash.bench.llm.cells import Implementation
from xeflash.bench.llm.generation import use
from xeflash.integrations.transformers_linear import patch


class Models(NamedTuple):
    """A model, and the same one with linear layers by xeflash, if that is wanted; they share their parameters."""

    torch: Any
    xeflash: Any = None

    def by(self, implementation: Implementation) -> Any:
        """Returns the one that an implementation wants, with its attention."""
        model = self.xeflash if implementation.linear == "xeflash" else self.torch
        use(model, implementation)
        return model


def prepared(model: Any, weights: str, patched: bool) -> Models:
    """Quantises the linear layers of a model, in place: torch has the same numbers in the model's dtype.

    The head stays as it is, unless the kind of weights ends with "+head".
    """
    kind, _, head = weights.partition("+")
    quantised = {} if kind == "same" else _quantise(model, kind, bool(head))
    if not patched:
        return Models(model)
    shared = {id(x): x for x in itertools.chain(model.parameters(), model.buffers())}
    twin = copy.deepcopy(model, shared)
    for name, found in quantised.items():
        _keep(twin.get_submodule(name), found)
    patch(twin)
    return Models(model, twin)


def _quantise(model: Any, weights: str, with_head: bool) -> dict[str, Quantised]:
    head, found = model.get_output_embeddings(), {}
    for name, module in model.named_modules():
        if type(module) is nn.Linear and (with_head or module is not head):
            found[name] = quantise(module.weight, weights, GROUP)
            module.weight.data = found[name].numbers()
    return found


def _keep(module: Any, found: Quantised) -> None:
    """Gives a layer the tensors that compressed-tensors loads from a checkpoint, which `patch` reads."""
    bits = 8 if found.kind == "int8" else 4
    module.quantization_scheme = SimpleNamespace(
        weights=SimpleNamespace(type="int", num_bits=bits), output_activations=None
    )
    module.weight_packed = _packed(found.q.int() + LARGEST[found.kind] + 1, bits)
    module.weight_scale = found.scales
    module.weight_shape = found.q.shape


def _packed(q: Tensor, bits: int) -> Tensor:
    """Packs numbers of so many bits in words of int32, the first one lowest."""
    each = 32 // bits
    q = nn.functional.pad(q, (0, -q.shape[1] % each)).view(len(q), -1, each)
    shifted = [q[..., i] << bits * i for i in range(each)]
    return torch.stack(shifted).sum(0, dtype=torch.int32)
