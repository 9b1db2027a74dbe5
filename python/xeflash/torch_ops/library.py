"""Registration of functions as operators of torch's dispatcher: schema, kernels, autocast, refusal of gradients."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, is_grad_enabled
from torch._C import _get_tracing_state, _is_any_autocast_enabled, _len_torch_dispatch_stack
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

from xeflash import _core
from xeflash.call.call import Call
from xeflash.torch_ops.forms import Form

Pair = tuple[Tensor, Tensor]
Results = tuple[Tensor, Tensor, Tensor, Tensor]  # out, LSE, state of dropout, residual of out
Scalar = int | float

LIBRARY = torch.library.Library("xeflash", "DEF")
_KEYS = {"cpu": "CPU", "xpu": "XPU"}


# ---- what torch does with a call ----------------------------------------------------------------


def needed(q: Any, k: Any, v: Any) -> bool:
    """Returns whether torch has to see a call on these: it transforms, casts, records, or they are no plain tensors."""
    return is_seen(q, k, v) or _is_any_autocast_enabled() or _get_tracing_state() is not None


def is_seen(q: Any, k: Any, v: Any) -> bool:
    """Returns whether something below autocast and autograd has to see a call on these."""
    plain = type(q) is Tensor and type(k) is Tensor and type(v) is Tensor
    return bool(
        not (plain or all(type(x) is Tensor or not isinstance(x, Tensor) for x in (q, k, v)))
        or _len_torch_dispatch_stack()
        or peek_interpreter_stack() is not None
    )


def check_gradients(call: Call, learned: Container[str] = ()) -> bool:
    """Checks that only `learned` arguments require grad; returns whether one does and recording is on.

    An argument may be a list of arrays. No gradient is computed of arguments that are not `learned`, and there are no
    forward-mode gradients.
    """
    if not is_grad_enabled() and forward_ad._current_level < 0:
        return False
    wanted = False
    if is_grad_enabled():
        for name, array in _each(call.arguments):
            if isinstance(array, Tensor) and array.requires_grad:
                if name.partition("[")[0] not in learned:
                    rule = "must not require grad, as no gradient of it is computed here; call it under "
                    rule += f"torch.no_grad() or detach {call.word(name)}"
                    raise call.refuse(name, rule, "requires_grad = True", NotImplementedError)
                wanted = True
    if forward_ad._current_level >= 0:
        for name, array in _each(call.arguments):
            if isinstance(array, Tensor) and forward_ad.unpack_dual(array).tangent is not None:
                rule = "must have no tangent, as there are no forward-mode gradients"
                raise call.refuse(name, rule, "one", NotImplementedError)
    return wanted


def requires_grad(*tensors: Tensor | None) -> bool:
    """Returns whether torch records what is computed from these."""
    return is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors)


_NUMBERS = (bool, int, float, str)
_WITHOUT_WRAPPER = (*_NUMBERS, Tensor, torch.nn.Parameter)


def _each(arrays: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in arrays.items():
        if isinstance(value, list | tuple):
            yield from ((f"{name}[{i}]", x) for i, x in enumerate(value))
        elif isinstance(value, dict):
            yield from ((f"{name}[{key!r}]", x) for key, x in value.items())
        elif value is not None and type(value) not in _NUMBERS:  # isinstance of Tensor is slow
            yield name, value


def refuse_transforms(function: str) -> None:
    """Refuses gradients of torch.func; its vmap alone is a loop of calls."""
    if (interpreter := peek_interpreter_stack()) is not None:
        raise NotImplementedError(
            f"{function}: gradients must not be asked for by torch.func's grad, vjp, jvp or vmap, as there are none "
            f"for them; use torch.autograd.grad or backward(), got a call below {interpreter.key().name}"
        )


class _Once(torch.autograd.Function):  # type: ignore[misc]
    """The gradients of a backward pass, which must not be differentiated again."""

    @staticmethod
    def forward(
        ctx: Any, function: str, compute: Callable[[], Sequence[Tensor | None]], *_tensors: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        ctx.function = function
        return tuple(compute())

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor | None) -> Any:
        raise NotImplementedError(
            f"{ctx.function}: gradients must not be differentiated again, as there is no double backward"
        )


def once(function: str, compute: Callable[[], Sequence[Tensor | None]], *tensors: Tensor | None) -> Any:
    """Computes the gradients of a backward pass from these tensors; they have no gradients themselves."""
    return _Once.apply(function, compute, *tensors)


# ---- registration -------------------------------------------------------------------------------


def register(
    schema: str,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    *,
    function: str,
    cast: tuple[str, ...] = (),
    mutates: tuple[str, ...] = (),
    random: bool = False,
    differentiate: Callable[[Any, dict[str, Any]], Any] | None = None,
) -> Any:
    """Makes the operator of a schema, and returns it; `kernel` runs it.

    Args:
        function: the name of the caller for messages, unless the arguments have it.
        fake: the operator without data: it gives shapes, types and strides of the results.
        cast: the arguments that autocast casts, as torch does for its own attention.
        mutates: the arguments that are written if there is a `k` to append.
        differentiate: runs a call with arguments that require grad, given the operator and named arguments; without it
            such calls are refused.
    """
    tags = (torch.Tag.pt2_compliant_tag, *((torch.Tag.nondeterministic_seeded,) if random else ()))
    LIBRARY.define(schema, tags=tags)
    name = schema.partition("(")[0]
    operator = getattr(torch.ops.xeflash, name).default
    parameters = [argument.name for argument in operator._schema.arguments]

    def bound(arguments: tuple[Any, ...], more: dict[str, Any]) -> dict[str, Any]:
        return {"function": function, **dict(zip(parameters, arguments, strict=False)), **more}

    def run(*arguments: Any, **more: Any) -> Any:
        if differentiate is None:
            check_gradients(Call(bound(arguments, more)))
        return kernel(*arguments, **more)

    def describe(*arguments: Any, **more: Any) -> Any:
        given = bound(arguments, more)
        if differentiate is None:
            check_gradients(Call(given))
        _refuse_other_devices(given["function"], given)
        return fake(**given)

    def record(*arguments: Any, **more: Any) -> Any:
        """Runs a call above autograd."""
        if is_grad_enabled() and _requires_grad(arguments, more):
            assert differentiate is not None
            return differentiate(operator, bound(arguments, more))
        if forward_ad._current_level >= 0:
            check_gradients(Call(bound(arguments, more)))
        three = _three(arguments)
        if is_seen(*three) or three[0].is_meta or has_subclass(arguments, more.values()):
            with torch._C._AutoDispatchBelowAutograd():
                return operator(*arguments, **more)
        return kernel(*arguments, **more)

    def resolve(*arguments: Any, **more: Any) -> Any:
        given = bound(arguments, more)
        writes = mutates if given.get("k") is not None else ()
        for key, x in given.items():
            if isinstance(x, Tensor):
                given[key] = resolved(given["function"], key, x, key in writes)
            elif key == "capture_arrays" and x is not None:
                given[key] = [array.resolve_neg() for array in x]
        return operator(**given)

    def refuse_vmap(*arguments: Any, **more: Any) -> Any:
        """Refuses vmap: torch's loop of calls serves neither lists nor tensors that are written."""
        raise NotImplementedError(
            f"{bound(arguments, more)['function']}: it must not be called below torch.func.vmap, got batched tensors"
        )

    if mutates:
        LIBRARY.impl(name, resolve, "Negative")
    if mutates or str(operator._schema.arguments[0].type) == "List[Tensor]":
        LIBRARY.impl(name, refuse_vmap, "FuncTorchBatched")
    if differentiate is not None:
        LIBRARY.impl(name, record, "Autograd")
    for device, key in _KEYS.items():
        LIBRARY.impl(name, run, key)
        if cast:
            LIBRARY.impl(name, _autocast(operator, parameters, device, cast), f"Autocast{key}")
    torch.library.register_fake(f"xeflash::{name}", describe, lib=LIBRARY)
    return operator


def register_product(form: Form, fake: Callable[..., Any], **more: Any) -> Any:
    """Makes the operator of an extension's function of the same name and words."""
    compute = getattr(_core, form.name)

    def kernel(*arguments: Any, **named: Any) -> Any:
        return compute(**{"function": form.function, **dict(zip(form.by_place, arguments, strict=False)), **named})

    return register(form.schema, kernel, fake, function=form.function, **more)


def _requires_grad(arguments: tuple[Any, ...], more: dict[str, Any]) -> bool:
    for values in (arguments, more.values()):
        for x in values:
            if type(x) is list:
                if any(isinstance(y, Tensor) and y.requires_grad for y in x):
                    return True
            elif x is not None and type(x) not in _NUMBERS and isinstance(x, Tensor) and x.requires_grad:
                return True
    return False


def has_subclass(*several: Iterable[Any]) -> bool:
    """Returns whether one of the tensors may be a wrapper without memory of its own, which torch has to unwrap."""
    for values in several:
        for x in values:
            if x is not None and type(x) not in _WITHOUT_WRAPPER and isinstance(x, Tensor):
                return True
    return False


def _three(arguments: tuple[Any, ...]) -> Any:
    """Returns three arguments that tell whether all are plain tensors: the first ones, or first and last of lists."""
    first = arguments[0]
    return (first[0], first[-1], (arguments[1] or first)[0]) if type(first) is list else (*arguments[:3], None)[:3]


def _refuse_other_devices(function: str, arrays: Mapping[str, Any]) -> None:
    tensors = [(name, x) for name, x in _each(arrays) if isinstance(x, Tensor) and name != "rng"]
    first, device = tensors[0][0], tensors[0][1].device
    for name, x in tensors:
        if x.device != device:
            raise ValueError(f"{function}: {name} must be on the device of {first} ({device}), got {x.device}")


def resolved(function: str, name: str, x: Tensor, written: bool) -> Tensor:
    """Returns x as it lies in memory; torch's own way to resolve negated views is not for operators that write."""
    if written and x.is_neg():
        raise ValueError(f"{function}: {name} must be writable, got a negated view")
    return x.resolve_neg()


def _autocast(operator: Any, parameters: list[str], device: str, cast: tuple[str, ...]) -> Callable[..., Any]:
    """Returns a function that casts the arguments of these names, and calls again below autocast."""
    above = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, f"Autocast{_KEYS[device]}"))
    places = [parameters.index(name) for name in cast]
    has_pages = "block_table" in parameters and "k_cache" not in parameters  # then k and v are the pages
    table = parameters.index("block_table") if has_pages else len(parameters)

    def below(*arguments: Any, **more: Any) -> Any:  # the dispatcher passes by place all that has one
        values, dtype = list(arguments), torch.get_autocast_dtype(device)
        paged = table < len(values) and values[table] is not None
        for place in places[:1] if paged else places:  # a cache is used where it is
            x = values[place] if place < len(values) else None
            if x is not None and x.is_floating_point() and 2 <= x.dtype.itemsize <= 4:
                values[place] = x.to(dtype)
        with torch._C._ExcludeDispatchKeyGuard(above):
            return operator(*values, **more)

    return below
