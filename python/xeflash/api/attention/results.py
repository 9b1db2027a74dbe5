"""Results of flash-attn's functions: out, and with return_attn_probs its LSE and dropout's probabilities."""

from __future__ import annotations

import sys
from typing import Any

from xeflash import _core
from xeflash.api.attention.kv_cache import attend_cache
from xeflash.api.attention.picked import pick_keys, run_picked
from xeflash.api.route import run
from xeflash.call.call import Call
from xeflash.call.newer_words import flags
from xeflash.call.ready import ready, seeded
from xeflash.call.schema import THD
from xeflash.call.values import is_on, shape_of

_NOT_OF_CACHES = frozenset(("dropout_p", "document_ids", "gather_kv_indices"))


def attend(call: Call) -> Any:
    """Runs a call that may have gradients, and returns the results that it asks for."""
    given = call.arguments
    if not ("return_lse" in given or "dropout_p" in given or "gather_kv_indices" in given):
        return run(call)[0]
    call, wants_third = flags(call)
    drops = is_on(call.function, "dropout_p", call.arguments.get("dropout_p"))
    if drops:
        call = _dropped(call, shown=wants_third)
    out, lse = run_picked(call)
    if not wants_third:
        return out if lse is None else (out, lse)
    return out, lse, _probabilities(call, out, lse) if drops else None


def attend_without_gradients(call: Call, why: str) -> Any:
    """Runs a call on keys and values that have no gradients, for the reason `why`; returns its results."""
    call, wants_third = flags(_cached(call, why))
    recorded = _recorded(call)
    if recorded:
        call = call.with_(**{name: x.detach() for name, x in recorded.items()})
    out, lse = attend_cache(call)
    if recorded:
        from xeflash.torch_ops.attention.gradients import without_gradient

        text = f"{call.function}: there must be no gradients with {why}, got a backward pass"
        out = without_gradient(text, out, list(recorded.values()))
    if wants_third:
        return out, lse, None
    return out if lse is None else (out, lse)


def _cached(call: Call, why: str) -> Call:
    """Removes arguments that a call on a cache does not have; refuses them if they are set."""
    given = call.arguments
    if not _NOT_OF_CACHES.isdisjoint(given):
        dropout_p = call.get("dropout_p")
        if isinstance(dropout_p, bool) or is_on(call.function, "dropout_p", dropout_p):
            raise call.refuse_given("dropout_p", f"must be 0 with {why}")
        for name in ("document_ids", "gather_kv_indices"):
            if call.get(name) is not None:
                raise call.refuse_given(name, f"must be None with {why}")
        call = call.with_(*_NOT_OF_CACHES)
    if given["layout"] == THD and len(of_k := shape_of(given["function"], "k", given["k_cache"])) == 3:
        rule = "must be None unless k has pages (pages, rows, heads, head_dim)"
        raise call.refuse("block_table", rule, f"one with {call.word('k_cache')}.shape = {list(of_k)}")
    return call


def _dropped(call: Call, shown: bool) -> Call:
    """Checks a call with dropout; draws its random numbers here if the caller wants to see dropped probabilities."""
    dropout_p, softcap = call["dropout_p"], call.get("softcap")
    if is_on(call.function, "softcap", softcap):
        got = f"dropout_p = {dropout_p}, softcap = {softcap}"
        raise call.refuse("softcap", "does not support dropout", got)
    if not shown:
        return call
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "compiler") and torch.compiler.is_compiling():
        got = f"dropout_p = {dropout_p}"
        raise call.refuse("return_lse", "with dropout must not be compiled", got, NotImplementedError)
    return pick_keys(seeded(call))


def _probabilities(call: Call, out: Any, lse: Any) -> Any:
    """Computes flash-attn's S_dmask, which has no gradient."""

    def constant(name: str, x: Any) -> Any:
        if not hasattr(x, "detach"):
            return x
        return x.detach().to(out.dtype) if name in ("q", "k", "v") else x.detach()  # autocast's type

    given = {name: constant(name, x) for name, x in call.arguments.items()}
    if captures := call.get("captures"):
        given["captures"] = {name: constant("", x) for name, x in captures.items()}
    return _core.probabilities(**ready(Call(given)).arguments, lse=constant("", lse), words=call.words)


def _recorded(call: Call) -> dict[str, Any]:
    """Returns the tensors among q, keys and values that require grad; flash-attn runs such calls."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.is_grad_enabled() or torch.compiler.is_compiling():
        return {}
    tensors = {name: x for name in ("q", "k_cache", "v_cache") if isinstance(x := call[name], torch.Tensor)}
    return {name: x for name, x in tensors.items() if x.requires_grad}
