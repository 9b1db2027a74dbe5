"""Gradients of ``torch.ops.xeflash.*``.

A call of which a tensor requires grad is made with its LSE and, in 16 bits, with what rounding takes from its output
(the rest: 2 bytes per element), whether or not the caller asked for them. They and the state of dropout's generator are
kept with its tensors for the backward pass. That is an operator, too,
``attention_backward``, for all layouts: it computes the gradients that somebody wants and no others, and gives the same
bits each time.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor, is_legacy_batchedtensor

from xeflash import _core, _score_mod
from xeflash._common import BHSD, THD
from xeflash._torch_library import (
    Pair,
    Results,
    Scalar,
    as_snippet,
    refuse_transforms,
    register,
    requires_grad,
    wants_gradients,
)
from xeflash.jit.kernel import Desc
from xeflash.tune import pick, xe

# The order of _core.backward's results. One more has those of captures, one after the other: "captures['NAME']".
LEARNED = ("q", "k", "v", "attn_mask", "alibi_slopes", "s_aux")
_OTHER_TYPES = re.compile(r"\b(f16|bf16|double|long|short|char|signed|unsigned|u?int\d+_t|size_t)\b")
_MOST_ELEMENTS = 1 << 29  # of captures that are learned: kernels count them, and their bytes, with 32 bits


# ---- the operator -------------------------------------------------------------------------------


def attention_backward(
    dout: Tensor,
    dlse: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    rng: Tensor,
    layout: int,
    wanted: Sequence[str],
    *,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    bottom_right: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    s_aux: Tensor | None = None,
    attn_mask: Tensor | None = None,
    enable_gqa: bool = False,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int = 0,
    max_seqlen_k: int = 0,
    seqused_k: Tensor | None = None,
    score_mod: str | None = None,
    capture_names: Sequence[str] | None = None,
    capture_arrays: Sequence[Tensor] | None = None,
    capture_numbers: Sequence[Scalar] | None = None,
    rest: Tensor | None = None,
    longer: bool = False,
    function: str = "attention_backward",
) -> list[Tensor]:
    """The gradients of the tensors that `wanted` names, in its order; `rng` is the state that the forward pass gave.

    `rest` is what rounding took from `out`: without it gradients in 16 bits are less exact where V has a mean. `longer`
    says that `out` and `lse` are those of rows of more keys than `k` has, of which these are a part.
    """
    seed, offset = (x % 2**64 for x in rng.tolist()) if dropout_p else (0, 0)
    packing = {"cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k, "seqused_k": seqused_k}
    of_layout: dict[str, Any] = {}
    if layout == BHSD:
        of_layout = {"attn_mask": attn_mask, "bottom_right": bottom_right, "enable_gqa": enable_gqa}
    elif layout == THD:
        of_layout = {**packing, "max_seqlen_q": max_seqlen_q, "max_seqlen_k": max_seqlen_k}
    for name, x in packing.items():
        if x is not None and layout != THD:
            raise ValueError(f"{function}: {name} must come with packed sequences, got one with layout = {layout}")
    if layout != BHSD and attn_mask is not None:
        raise ValueError(f"{function}: attn_mask must come with the layout {BHSD}, got one with layout = {layout}")
    arrays = {"q": q, "k": k, "v": v, "attn_mask": attn_mask, "alibi_slopes": alibi_slopes, "s_aux": s_aux}
    arrays |= _by_name(capture_names, capture_arrays)
    given = {name: _given(arrays, name) for name in wanted}
    *gradients, of_captures = _core.backward(
        function=function, layout=layout, q=q, k=k, v=v, out=out, rest=rest, lse=lse, longer=longer, dout=dout,
        dlse=dlse, wanted=tuple(wanted), softmax_scale=softmax_scale, causal=causal, window_left=window_left,
        window_right=window_right, softcap=softcap, alibi_slopes=alibi_slopes, s_aux=s_aux, dropout_p=dropout_p,
        seed=seed, offset=offset,
        score_mod=as_snippet(function, score_mod, capture_names, capture_arrays, capture_numbers), **of_layout,
    )  # fmt: skip
    by_name = dict(zip(LEARNED, gradients, strict=True))
    captured = [name for name in arrays if name in given and name not in LEARNED]
    if captured:
        parts = of_captures.split([given[name].numel() for name in captured])
        by_name |= {name: part.view(given[name].shape) for name, part in zip(captured, parts, strict=True)}
    return [by_name[name].sum_to_size(x.shape).to(x.dtype) for name, x in given.items()]


def _by_name(names: Sequence[str] | None, arrays: Sequence[Tensor] | None) -> dict[str, Tensor]:
    return {f"captures[{name!r}]": x for name, x in zip(names or (), arrays or (), strict=False)}


def _fake(q: Tensor, k: Tensor, v: Tensor, wanted: Sequence[str], **more: Any) -> list[Tensor]:
    captured = _by_name(more.get("capture_names"), more.get("capture_arrays"))
    arrays = {"q": q, "k": k, "v": v, **more, **captured}
    return [x.new_empty(x.shape) for x in (_given(arrays, name) for name in wanted)]


def _given(arrays: Mapping[str, Any], name: str) -> Tensor:
    x = arrays.get(name)
    if (name not in LEARNED and not name.startswith("captures[")) or x is None:
        raise ValueError(
            f"attention_backward: wanted must be names of {LEARNED} or \"captures['NAME']\" whose tensors are given, "
            f"got {name!r}"
        )
    assert isinstance(x, Tensor)
    return x


class _Once(torch.autograd.Function):  # type: ignore[misc]
    """The operator where its results might be differentiated, which is refused."""

    @staticmethod
    def forward(ctx: Any, operator: Any, given: dict[str, Any], *_tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.function = given["function"]
        return tuple(operator(**given))

    @staticmethod
    def backward(ctx: Any, *_gradients: Tensor | None) -> Any:
        raise NotImplementedError(
            f"{ctx.function}: gradients must not be differentiated again, as there is no double backward"
        )


def _differentiate_once(operator: Any, given: dict[str, Any]) -> list[Tensor]:
    refuse_transforms(given["function"])
    tensors = [x for x in (*given.values(), *(given.get("capture_arrays") or ())) if isinstance(x, Tensor)]
    return list(_Once.apply(operator, given, *tensors))


_backward_op = register("attention_backward", attention_backward, _fake, differentiate=_differentiate_once)
_OPTIONS = frozenset(inspect.signature(attention_backward).parameters)
# And what changes no gradient: how keys are shared out, and what a call gives back or keeps in `rng`.
_TAKEN = _OPTIONS | {"num_splits", "return_lse", "keep_rest", "seed", "offset"}


# ---- attention ----------------------------------------------------------------------------------


class _Call(NamedTuple):
    """A call of an operator, but for its tensors."""

    operator: Any
    layout: int
    names: tuple[str, ...]  # of the tensors; what follows them are captures
    options: dict[str, Any]
    in_core: Mapping[str, str]  # the extension's words for those of the operator

    def run(self, tensors: Sequence[Tensor]) -> Results:
        given = dict(zip(self.names, tensors, strict=False))
        captured = {"capture_arrays": list(tensors[len(given) :])} if "capture_names" in self.options else {}
        result: Results = self.operator(**self.options, **given, **captured, return_lse=True)
        return result

    def backward(self, tensors: Sequence[Tensor], wanted: list[str], **more: Any) -> list[Tensor]:
        given = self.options | dict(zip(self.names, tensors, strict=False))
        given = {self.in_core.get(name, name): x for name, x in given.items()}
        if "capture_names" in given:
            given["capture_arrays"] = list(tensors[len(self.names) :])
        given = {name: x for name, x in given.items() if name in _OPTIONS}
        result: list[Tensor] = _backward_op(**given, **more, layout=self.layout, wanted=wanted)
        return result


class _Attention(torch.autograd.Function):  # type: ignore[misc]
    """(out, lse, rng, rest) of a call with its tensors."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *tensors: Tensor) -> Results:
        out, lse, rng, rest = call.run(tensors)
        ctx.call = call
        ctx.save_for_backward(*tensors, out, lse, rng, rest)
        ctx.mark_non_differentiable(rng, rest)
        ctx.set_materialize_grads(False)
        return out, lse, rng, rest

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None, _drng: None, _drest: None) -> Any:
        call: _Call = ctx.call
        if any(x is not None and (is_batchedtensor(x) or is_legacy_batchedtensor(x)) for x in (dout, dlse)):
            raise NotImplementedError(
                f"{call.options['function']}: gradients must not be batched (is_grads_batched, vectorised jacobians), "
                f"as the backward pass takes one at a time, got some below vmap"
            )
        *tensors, out, lse, rng, rest = ctx.saved_tensors
        asked = ctx.needs_input_grad[1:]
        names = [call.in_core.get(name, name) for name in call.names]
        names += _by_name(call.options.get("capture_names"), tensors[len(names) :])
        wanted = [name for name, needs in zip(names, asked, strict=True) if needs]
        if dout is None:
            dout = out.new_zeros(()).expand(out.shape)
        kept = {"rest": rest} if rest.numel() else {}
        found = call.backward(tensors, wanted, dout=dout, dlse=dlse, out=out, lse=lse, rng=rng, **kept)
        gradients = dict(zip(wanted, found, strict=True))
        return None, *(gradients.get(name) for name in names)


@functools.cache
def _reason_for_no_room(arch: str, dim: int, dim_v: int) -> str:
    """Why the backward pass of a GPU has no tiles for these head dims in fp32; empty if it has."""
    try:
        for algorithm in xe.BACKWARD:
            pick(Desc(algorithm, arch, "float32", dim, dim_v, rows=32, access="dwords"))
    except NotImplementedError as error:
        return str(error).removeprefix("xeflash: ")
    return ""


def _check_room(function: str, arch: str, q: Tensor, v: Tensor) -> None:
    """Refuses in the forward call what the backward pass would refuse; 16 bits always find room."""
    if q.dtype is torch.float32 and (reason := _reason_for_no_room(arch, q.shape[-1], v.shape[-1])):
        raise NotImplementedError(f"{function}: gradients must not be wanted of these head dims here, as {reason}")


def _refuse_captures(function: str, score_mod: str, elements: int) -> None:
    """What the kernel of their gradients does not have."""
    if elements > _MOST_ELEMENTS:
        raise NotImplementedError(
            f"{function}: captures that require grad must have at most {_MOST_ELEMENTS} elements together, "
            f"got {elements}"
        )
    if found := _OTHER_TYPES.search(_score_mod.without_comments(score_mod)):
        raise NotImplementedError(
            f"{function}: score_mod must have no other types than float, int and bool where captures require grad, "
            f"got {found[0]!r}"
        )


class Gradients:
    """Makes the calls of an operator that need gradients; `names` are its words for those of the extension."""

    def __init__(self, layout: int, names: Mapping[str, str] | None = None) -> None:
        """Keeps what is the same in all calls."""
        self._layout = layout
        self._in_core = {theirs: ours for ours, theirs in (names or {}).items()}
        self._learned = [(names or {}).get(name, name) for name in LEARNED]

    def __call__(self, operator: Any, given: dict[str, Any]) -> Results:
        """Runs the operator with the arguments that are given."""
        paged = given.get("block_table") is not None
        captured = given.get("capture_arrays") or []
        named = {name: x for name, x in given.items() if name != "capture_arrays"}
        named |= _by_name(given.get("capture_names"), captured)
        wants_gradients(given["function"], named, () if paged else (*self._learned, "captures"))
        refuse_transforms(given["function"])
        if learned := [x for x in captured if x.requires_grad]:
            _refuse_captures(given["function"], given["score_mod"], sum(x.numel() for x in learned))
        for name, x in given.items():
            if x is not None and self._in_core.get(name, name) not in _TAKEN:
                raise NotImplementedError(
                    f"{given['function']}: {name} must not be given where gradients are wanted, as the backward pass "
                    f"does not have it, got {type(x).__name__ if isinstance(x, Tensor) else repr(x)}"
                )
        q, _, v = (given[name] for name in self._learned[:3])
        if type(q) is Tensor and q.device.type == "xpu" and not torch.compiler.is_compiling():
            _check_room(given["function"], _core.arch_of(q, given["function"], self._learned[0]), q, v)
        tensors = self._expand({name: x for name, x in given.items() if isinstance(x, Tensor)})
        left_out = {*tensors, "capture_arrays", "return_lse", "keep_rest"}
        options = {name: x for name, x in given.items() if name not in left_out}
        value = self._learned[2]  # its gradient needs no Delta
        options["keep_rest"] = bool(given.get("keep_rest")) or requires_grad(
            *(x for name, x in tensors.items() if name != value), *captured
        )
        call = _Call(operator, self._layout, tuple(tensors), options, self._in_core)
        out, lse, rng, rest = _Attention.apply(call, *tensors.values(), *captured)
        if not given.get("return_lse"):
            lse = out.new_empty(0, dtype=torch.float32)
        return out, lse, rng, rest if given.get("keep_rest") else out.new_empty(0)

    def _expand(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Keys and values of batch 1, which serve all queries, as views of their batch: autograd adds gradients up."""
        if self._layout == THD:
            return tensors
        q, *others = self._learned[:3]
        batch = tensors[q].shape[0]
        if batch != 1 and all(tensors[name].shape[0] == 1 for name in others):
            tensors |= {name: tensors[name].expand(batch, *tensors[name].shape[1:]) for name in others}
        return tensors


# ---- merge_states -------------------------------------------------------------------------------


class _Merge(torch.autograd.Function):  # type: ignore[misc]
    """(out, lse) of outs and then LSEs. With w_i = exp(lse_i - lse), 0 where a part had no key for a row:

    out = sum_i w_i out_i:   dout_i = w_i dout,   dlse_i = w_i (D_i - sum_j w_j D_j + dlse),   D_i = dout out_i
    """

    @staticmethod
    def forward(ctx: Any, operator: Any, parts: int, *states: Tensor) -> Pair:
        out, lse = operator(list(states[:parts]), list(states[parts:]))
        ctx.save_for_backward(*states, lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, dout: Tensor | None, dlse: Tensor | None) -> Any:
        *states, lse = ctx.saved_tensors
        parts = len(states) // 2
        outs, lses = states[:parts], states[parts:]
        lse = lse.masked_fill(lse.isinf(), 0.0)
        weights = [(x.masked_fill(x.isinf(), -torch.inf) - lse).exp() for x in lses]
        of_outs: list[Tensor | None] = [None] * parts
        moved: list[Tensor | float] = [0.0] * parts
        if dout is not None:
            dout = dout.float()
            of_outs = [(w.mT[..., None] * dout).to(x.dtype) for w, x in zip(weights, outs, strict=True)]
            dots = [(dout * x).sum(-1).mT.masked_fill(y.isinf(), 0.0) for x, y in zip(outs, lses, strict=True)]
            mean = sum(w * dot for w, dot in zip(weights, dots, strict=True))
            moved = [dot - mean for dot in dots]
        of_lses = [w * (x if dlse is None else x + dlse) for w, x in zip(weights, moved, strict=True)]
        return None, None, *of_outs, *of_lses


def merge_with_gradients(operator: Any, given: dict[str, Any]) -> Pair:
    """A call of merge_states that needs them."""
    refuse_transforms("merge_states")
    outs, lses = given["outs"], given["lses"]
    result: Pair = _Merge.apply(operator, len(outs), *outs, *lses)
    return result
