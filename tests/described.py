"""Which kernels a Spec asks for, without running it: its call is described to the extension, on arrays without values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from arrays import ArraysOf
from gradients import learned_of
from kernel_list import CORES, listed_name
from xeflash import _core
from xeflash.jit import calls
from xeflash.jit.provide import source_of
from xeflash.runtime.interop import Placeholder
from xeflash.selftest.attention.drawn import draw
from xeflash.selftest.attention.spec import Spec
from xeflash.sim.binary import vector_engines
from xeflash.tune import xe

CPU = "cpu-avx512-bf16"


class Described(ArraysOf):
    """Arrays of a Spec without memory, which lie as its arrays would."""

    def __init__(self, spec: Spec) -> None:
        super().__init__(replace(spec, kind="torch"))
        self.on_gpu = True  # where arrays begin at a multiple of many bytes, unless their layout says otherwise

    def placed(self, x: Any) -> Placeholder:
        array = Placeholder(tuple(x.shape), str(x.dtype).removeprefix("torch."), strides=tuple(x.stride()))
        array.address += x.storage_offset() * x.element_size()
        return array

    def put(self, *given: Any, **named: Any) -> Placeholder:
        return self.placed(super().put(*given, **named))

    def put_rows(self, *given: Any, **named: Any) -> Placeholder:
        return self.placed(super().put_rows(*given, **named))


def kernels_of(spec: Spec, device: str = CPU, splits: int = 0) -> list[str]:
    """As kernel_list.txt has them, on a CPU of these instructions, or on pvc, bmg or dg2."""
    plain = spec.entry.replace("qkvpacked", "func").replace("kvpacked", "func").replace("varlen-func", "varlen")
    spec = replace(spec, entry=plain)
    arrays, drawn = Described(spec), draw(spec)
    put = drawn.put(arrays)
    given: dict[str, Any] = drawn.in_core(put) | ({"num_splits": splits} if splits else {})

    def call() -> None:
        out, lse = _core.forward(**given, return_lse=spec.grad or spec.probs or spec.returns_lse)
        if spec.probs:
            _core.probabilities(**given, out=out, lse=lse)
        if spec.grad:
            names = {"near": "captures['near']"}
            wanted = tuple(names.get(x, x) for x in learned_of(drawn) if x not in spec.fixed.split("+"))
            results = {"out": out, "lse": lse, "dout": put["dout"], "dlse": put.get("dlse")}
            _core.backward(**given, **results, wanted=wanted)

    where = (xe.DEVICES[device], vector_engines(device)) if device in xe.DEVICES else (device, CORES)
    return sorted({listed_name(source_of(desc).name) for desc in calls.kernels_of(call, *where)})
