"""The keywords that flash-attn 3 and 4 have beside those of flash-attn 2.

Other names of our arguments are translated. What chooses between ways to the same result chooses nothing here. All else
is refused, unless it is what it would be if nobody had given it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

_NAMES = {"learnable_sink": "s_aux", "page_table": "block_table", "k_descale": "k_scale", "v_descale": "v_scale"}
_CHOICES = {"pack_gqa", "min_seqlen_k", "disable_scheduler_metadata"}
_REFUSED = {
    "attention_chunk": "score_mod can hide what is in another chunk",
    "aux_scalars": "see captures",
    "aux_tensors": "see captures",
    "block_sparse_tensors": "blocks cannot be left out",
    "block_sparse_tensors_bwd": "blocks cannot be left out",
    "cu_seqlens_k_new": "new keys must be as many for each sequence",
    "cu_seqlens_q": "flash_attn_varlen_func with block_table takes packed queries",
    "gather_kv_indices": "keys cannot be picked",
    "mask_mod": "score_mod can hide keys",
    "max_seqlen_q": "flash_attn_varlen_func with block_table takes packed queries",
    "num_heads_q": "K and V must have as many heads as Q if they are packed with it",
    "q_descale": "queries cannot be quantised",
    "qv": "scores have one product",
    "rotary_seqlens": "positions are those from cache_seqlens on",
    "scheduler_metadata": "each call makes its own schedule",
    "score_mod_bwd": "the derivative of a score_mod is taken by the backward pass",
    "seqlen_k_per_split": "see num_splits",
    "seqused_q": "all queries must be used",
    "sm_margin": "no part of the device can be left free",
}

_Function = TypeVar("_Function", bound=Callable[..., Any])

LSE_ALONE: Any = object()  # as return_attn_probs: the LSE, and no probabilities with dropout, which nobody would see


def public(run: Callable[[str, dict[str, Any]], Any]) -> Callable[[_Function], _Function]:
    """Makes a public function of a signature and its docstring: `run` gets the arguments that are given, by name.

    What is not given has the default of schema.py, which a test holds against the signature's.
    """

    def decorate(function: _Function) -> _Function:
        name, parameters = function.__name__, inspect.signature(function).parameters
        names, own = tuple(parameters), frozenset(parameters)
        places = sum(x.kind is not x.KEYWORD_ONLY for x in parameters.values())
        needed = sum(x.default is x.empty for x in parameters.values())

        @functools.wraps(function)
        def wrapper(*arguments: Any, **named: Any) -> Any:
            given = dict(zip(names, arguments, strict=False))
            if named:
                if not own.issuperset(named):
                    named = _known(name, own, named)
                given.update(named)
                if given.get("softcap", 0) is None:
                    del given["softcap"], named["softcap"]
            count = len(arguments)
            if not needed <= count <= places or len(given) != count + len(named):
                function(*arguments, **named)  # raises a TypeError, unless all is well
            return run(name, given)

        return cast("_Function", wrapper)

    return decorate


def _known(name: str, own: frozenset[str], named: dict[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    return_lse = False
    for keyword, value in named.items():
        if keyword in own:
            known[keyword] = value
        elif _NAMES.get(keyword) in own:
            ours = _NAMES[keyword]
            if value is not None and named.get(ours) is not None:
                raise ValueError(f"{name}: {keyword} must be None if {ours}, which it is, is given")
            if value is not None or ours not in named:
                known[ours] = value
        elif keyword == "return_lse" and "return_attn_probs" in own:
            return_lse = bool(value)
        elif keyword in _CHOICES:
            if value is not None and not isinstance(value, int):
                raise TypeError(f"{name}: {keyword} must be a number, or None, got {type(value).__name__}")
        elif keyword in _REFUSED or keyword in _NAMES:
            if value is not None and not (isinstance(value, int) and value == 0):
                got = value if isinstance(value, int | float) else type(value).__name__
                why = _REFUSED.get(keyword, "there is no cache")
                raise NotImplementedError(f"{name}: {keyword} must be None, got {got}: {why}")
        else:
            raise TypeError(f"{name}() got an unexpected keyword argument {keyword!r}")
    if return_lse:
        if known.get("return_attn_probs"):
            raise ValueError(f"{name}: return_lse must be False with return_attn_probs, got True")
        known["return_attn_probs"] = LSE_ALONE
    return known
