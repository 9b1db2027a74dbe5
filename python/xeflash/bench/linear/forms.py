"""A case's inputs, our call, and torch's ways to compute the same layer, each on copies of the weight in turns."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

import xeflash
from xeflash.bench.environ import last_level_cache
from xeflash.bench.forms import TORCH_DTYPES
from xeflash.bench.linear.cases import Case
from xeflash.bench.linear.weights import LARGEST, Quantised, quantise

PLAIN = "F.linear"
FORM_NOTES = {
    PLAIN: "torch.nn.functional.linear with the weight in the type of x, in the place of quantised ones, too",
    "compiled": "the same by torch.compile, without changes of the weight",
    "int8pack": "torch.ops.aten._weight_int8pack_mm: one scale per output",
    "int4pack": "torch.ops.aten._weight_int4pack_mm_for_cpu: scales and zeros of the same groups",
}
_CACHE = 32 << 20  # where its size is not known
_CACHES = 4  # as large are all copies together
Form = Callable[[], Tensor]
Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class Inputs:
    """x (rows, inputs), the weight in its type, and, if it is quantised, what it is made of."""

    x: Tensor
    weight: Tensor
    quantised: Quantised | None

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of xeflash.linear from `weight` on."""
        return {"weight": self.weight} if self.quantised is None else self.quantised.arguments()


def make_inputs(case: Case, device: str, seed: int) -> Inputs:
    """Returns normal inputs, the same for a seed. A weight that is quantised has the quantised numbers."""
    generator = torch.Generator(device=device).manual_seed(seed)
    dtype = TORCH_DTYPES[case.dtype]
    x = torch.randn((case.rows, case.inputs), generator=generator, device=device).to(dtype)
    weight = torch.randn((case.outputs, case.inputs), generator=generator, device=device)
    weight = (weight * case.inputs**-0.5).to(dtype)
    if case.weights == "same":
        return Inputs(x, weight, None)
    quantised = quantise(weight, case.weights, case.group)
    return Inputs(x, quantised.numbers(), quantised)


def bytes_of(arrays: Arrays) -> int:
    """Returns the bytes of the tensors: the weight, its scales and zeros."""
    return sum(x.nbytes for x in arrays.values() if isinstance(x, Tensor))


def copies_of(size: int) -> int:
    """Returns how many weights of so many bytes are more than the last-level cache holds."""
    return max(2, -(-_CACHES * (last_level_cache() or _CACHE) // max(1, size)))


def in_turns(call: Callable[..., Tensor], arrays: Arrays) -> Form:
    """Returns a call that takes the next copy of the arrays each time."""
    copies = [
        {name: x.clone() if isinstance(x, Tensor) else x for name, x in arrays.items()}
        for _ in range(copies_of(bytes_of(arrays)))
    ]
    turns = itertools.cycle(copies)
    return lambda: call(**next(turns))


def our_form(inputs: Inputs) -> Form:
    """Returns xeflash.linear on the inputs."""
    return in_turns(lambda **weight: xeflash.linear(inputs.x, **weight), inputs.arguments())


def torch_forms(case: Case, inputs: Inputs, compiled: bool) -> dict[str, Form]:
    """Returns torch's ways by name; its operators on quantised weights are left out where torch refuses them."""
    x = inputs.x
    forms = {PLAIN: in_turns(lambda weight: linear(x, weight), {"weight": inputs.weight})}
    quantised = _int_form(case, inputs) if inputs.quantised is not None and x.device.type == "cpu" else None
    if quantised is not None:
        forms[f"{case.weights}pack"] = quantised
    if compiled and case.weights == "same":
        torch.compiler.reset()  # it would take other sizes for reasons to become general
        function = torch.compile(lambda x, weight: linear(x, weight), dynamic=False)
        forms["compiled"] = in_turns(lambda weight: function(x, weight), {"weight": inputs.weight})
    return forms


def _int_form(case: Case, inputs: Inputs) -> Form | None:
    """Returns torch's operator on weights of 8 or 4 bits; None where this torch does not have it for the case."""
    aten, x = torch.ops.aten, inputs.x
    try:
        if case.weights == "int8":
            scales = inputs.weight.float().abs().amax(1) / LARGEST["int8"]
            rounded = (inputs.weight.float() / scales[:, None]).round().to(torch.int8)
            form = in_turns(
                lambda weight, scales: aten._weight_int8pack_mm(x, weight, scales),
                {"weight": rounded, "scales": scales.to(x.dtype)},
            )
        else:
            assert inputs.quantised is not None
            scales = inputs.quantised.scales
            both = torch.stack((scales, torch.zeros_like(scales)), -1).transpose(0, 1).contiguous()
            packed = aten._convert_weight_to_int4pack_for_cpu(inputs.quantised.q.int() + 8, 1)
            form = in_turns(
                lambda weight, both: aten._weight_int4pack_mm_for_cpu(x, weight, case.group, both),
                {"weight": packed, "both": both},
            )
        form()
    except (RuntimeError, AttributeError, NotImplementedError):
        return None
    return form
