"""Functions of torch as graphs, whose nodes torch can compute again from a call's own tensors."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._decomp import core_aten_decompositions, get_decompositions
from torch._dispatch.python import suspend_functionalization
from torch._dynamo import convert_frame
from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch._subclasses.functional_tensor import disable_functional_mode
from torch.autograd import forward_ad
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx
from torch.fx.node import map_arg
from torch.overrides import TorchFunctionMode

from xeflash.integrations.flex.expressions import Refused

SIDES = ("b", "h", "q", "k")


@dataclass(eq=False)
class Traced:
    """A traced function."""

    graph: Graph
    inputs: dict[Node, str]  # the score and the indices
    tensors: dict[Node, int]  # captured tensors, by their number among those of the call
    numbers: dict[Node, Any]  # captured numbers
    seen: int  # the number of the call's tensors
    own: tuple[Tensor, ...]  # tensors that the function makes, or that nobody has counted, numbered after those
    made: set[int]  # the numbers of those that it makes
    looks: bool  # it reads values of captured tensors, or tensors that nobody has counted
    cuts: bool  # a part of it has no gradients, where its graph has some

    def read_by(self, node: Node) -> list[int]:
        """Returns the numbers of the captured tensors that a node is computed from."""
        found, nodes = {node: None}, [node]
        while nodes:
            for x in nodes.pop().all_input_nodes:
                if x not in found:
                    found[x] = None
                    nodes.append(x)
        return sorted({self.tensors[x] for x in found if x in self.tensors})

    def value(self, node: Node, side: tuple[str, ...], tensors: Sequence[Tensor], place: Any) -> Tensor:
        """Returns a node's value, computed by torch from these tensors, for all positions of one side of a call."""
        known: dict[Node, Any] = {n: tensors[i] for n, i in self.tensors.items()} | self.numbers
        if node in known:
            return known[node]

        def one(*index: Tensor) -> Any:
            at = dict(zip(side, index, strict=True))
            return _computed(node, known | {n: at[name] for n, name in self.inputs.items() if name in at})

        f: Callable[..., Any] = one
        for i in reversed(range(len(side))):
            f = torch.vmap(f, in_dims=tuple(0 if j == i else None for j in range(len(side))))
        with torch.autocast(place.device.type, enabled=False):
            return f(*(torch.arange(getattr(place, name), dtype=torch.int32, device=place.device) for name in side))


def _computed(node: Node, known: dict[Node, Any]) -> Any:
    if node not in known:
        assert callable(node.target)
        known[node] = node.target(
            *map_arg(node.args, lambda n: _computed(n, known)), **map_arg(node.kwargs, lambda n: _computed(n, known))
        )
    return known[node]


class _Watch(TorchFunctionMode):  # type: ignore[misc]
    """Sees whether a function looks at values of tensors, or computes without gradients; refuses writes to tensors."""

    looks = cuts = False

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        of = kwargs or {}
        if name in _WRITES or (name[-1:] == "_" and name[:2] != "__") or of.get("out") is not None or of.get("inplace"):
            raise Refused(f"{name}, which writes to a tensor,")
        self.looks |= name in _LOOKS
        self.cuts |= name == "detach" or function == _DATA or (name == "_set_grad_enabled" and not args[0])
        return function(*args, **of)


_WRITES = {"__setitem__"} | {
    f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "and", "or", "xor", "pow", "mod")
}
_WRITES |= {f"__i{name}__" for name in ("floordiv", "lshift", "rshift")}
_DATA = torch.Tensor.data.__get__
_LOOKS = {"item", "tolist", "numpy", "__int__", "__float__", "__bool__", "__index__", "__array__", "data_ptr"}


@functools.cache
def _decompositions() -> Any:
    """Returns torch's decompositions into its core operators, and those of core operators that are sums of others."""
    aten = torch.ops.aten
    more = [aten.elu, aten.gelu, aten.leaky_relu, aten.hardtanh, aten.hardswish, aten.hardsigmoid, aten.mish]
    more += [aten.linalg_vector_norm, aten._softmax]
    return dict(core_aten_decompositions().items()) | get_decompositions(more)


def trace(
    function: Callable[..., Any], scores: bool, device: torch.device, given: Sequence[Any], seen: Sequence[Tensor]
) -> Traced:
    """Makes a graph of a score_mod, or of a mask_mod (`scores` is False).

    `given` are tensors and numbers that it takes after its indices, `seen` those that it captures.
    """
    if torch._C._functorch.peek_interpreter_stack() is not None or forward_ad._current_level >= 0:
        raise NotImplementedError("flex_attention: functions must not be new within vmap, torch.func or forward_ad")
    tensors = [x for x in given if isinstance(x, Tensor)]
    watch = _Watch()

    def call(*arguments: Any) -> Any:  # make_fx looks at the signature
        with watch:
            return function(*arguments)

    with contextlib.ExitStack() as stack:
        for context in (suspend_functionalization(), disable_functional_mode(), disable_proxy_modes_tracing()):
            stack.enter_context(context)
        stack.enter_context(torch.autocast(device.type, enabled=False))
        mode = detect_fake_mode(tensors) or FakeTensorMode(allow_non_fake_inputs=True)
        with mode:
            index = [torch.empty((), dtype=torch.int32, device=device) for _ in SIDES]
            score = [torch.empty((), dtype=torch.float32, device=device)] if scores else []
            stand_ins = [
                torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=x.device)
                if isinstance(x, Tensor)
                else x
                for x in given
            ]
        try:
            with convert_frame.compile_lock, TransformGetItemToIndex():  # torch traces in one thread at a time
                module = make_fx(call, decomposition_table=_decompositions(), _allow_non_fake_inputs=True)(
                    *score, *index, *stand_ins
                )
        except Refused:
            raise
        except Exception as error:  # what cannot be traced
            said = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
            if watch.looks:
                said = "Python takes the value of a tensor, by item() or a branch on it"
            raise Refused(f"no graph of torch ({said})") from error
    module.graph.eliminate_dead_code()
    return _split(module, scores, given, seen, watch)


def _split(module: GraphModule, scores: bool, given: Sequence[Any], seen: Sequence[Tensor], watch: _Watch) -> Traced:
    names = ("s", *SIDES) if scores else SIDES
    holders = [n for n in module.graph.nodes if n.op == "placeholder"]
    inputs = dict(zip(holders, names, strict=False))
    traced = Traced(module.graph, inputs, {}, {}, len(seen), (), set(), watch.looks, watch.cuts)
    at = 0
    for node, x in zip(holders[len(names) :], given, strict=True):
        if isinstance(x, Tensor):
            traced.tensors[node] = at
            at += 1
        else:
            traced.numbers[node] = x
    known = {id(x): i for i, x in enumerate(seen)}
    attributes = [n for n in module.graph.nodes if n.op == "get_attr"]
    for node in attributes:
        x = operator.attrgetter(node.target)(module)
        if id(x) not in known:
            known[id(x)] = len(seen) + len(traced.own)
            traced.own = (*traced.own, x)
            if all(user.target is torch.ops.aten.lift_fresh_copy.default for user in node.users):
                traced.made.add(known[id(x)])
            else:
                traced.looks = True
        traced.tensors[node] = known[id(x)]
        with unset_fake_temporarily():
            node.meta.setdefault("val", torch.empty(x.shape, dtype=x.dtype, device="meta"))
    for name in {str(n.target) for n in attributes}:
        delattr(module, name)  # a graph keeps no caller's tensors alive
    return traced
