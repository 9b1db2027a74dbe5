"""The keywords that flash-attn 3 and 4 have beside those of flash-attn 2.

Other names of our arguments are translated. What chooses between ways to the same result chooses nothing here. All else
is refused, unless it is what it would be if nobody had given it.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from xeflash.call.values import flag, shown

_NAMES = {"learnable_sink": "s_aux", "sinks": "s_aux", "page_table": "block_table"}
_NAMES |= {f"{x}_descale": f"{x}_scale" for x in "qkv"}
_LSE = {"return_lse", "return_softmax_lse"}  # (out, LSE), where flash-attn 2 has return_attn_probs
_CHOICES = {"pack_gqa", "min_seqlen_k", "disable_scheduler_metadata", "fa_version", "zero_tensors"}
_REFUSED = {
    "aux_scalars": "see captures",
    "aux_tensors": "see captures",
    "block_sparse_tensors": "blocks cannot be left out",
    "block_sparse_tensors_bwd": "blocks cannot be left out",
    "cu_seqlens_k_new": "new keys must be as many for each sequence",
    "gather_kv_indices": "flash_attn_func and attention pick keys",
    "mask_mod": "score_mod can hide keys",
    "num_heads_q": "K and V must have as many heads as Q if they are packed with it",
    "q_descale": "packed queries cannot be quantised",
    "qv": "scores have one product",
    "rotary_seqlens": "positions are those from cache_seqlens on, so it must be that tensor",
    "scheduler_metadata": "each call makes its own schedule",
    "score_mod_bwd": "the derivative of a score_mod is taken by the backward pass",
    "seqlen_k_per_split": "see num_splits",
    "seqused_q": "flash_attn_varlen_func limits queries",
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
        has_starts = "cu_seqlens_k" in parameters
        names, own = tuple(parameters), frozenset(parameters)
        places = sum(x.kind is not x.KEYWORD_ONLY for x in parameters.values())
        needed = sum(x.default is x.empty for x in parameters.values())

        @functools.wraps(function)
        def wrapper(*arguments: Any, **named: Any) -> Any:
            given = dict(zip(names, arguments, strict=False))
            if named:
                if not own.issuperset(named):
                    named = _known(name, own, named, given)
                given.update(named)
                if given.get("softcap", 0) is None:
                    del given["softcap"], named["softcap"]
            if has_starts and "cu_seqlens_k" not in given and given.get("seqused_k") is not None:
                given["cu_seqlens_k"] = named["cu_seqlens_k"] = None  # lengths say enough
            count = len(arguments)
            if not needed <= count <= places or len(given) != count + len(named):
                function(*arguments, **named)  # raises a TypeError, unless all is well
            return run(name, given)

        return cast("_Function", wrapper)

    return decorate


def _known(name: str, own: frozenset[str], named: dict[str, Any], by_place: dict[str, Any]) -> dict[str, Any]:
    known: dict[str, Any] = {}
    return_lse = ""
    for keyword, value in named.items():
        if keyword in own:
            known[keyword] = value
        elif _NAMES.get(keyword) in own:
            ours = _NAMES[keyword]
            if value is not None and named.get(ours) is not None:
                raise ValueError(f"{name}: {keyword} must be None if {ours}, which it is, is given")
            if value is not None or ours not in named:
                known[ours] = value
        elif keyword in _LSE and "return_attn_probs" in own:
            return_lse = keyword if flag(name, keyword, value) else return_lse
        elif keyword == "cu_seqlens_k_new" and "cu_seqlens_q" in own and named.get("k", by_place.get("k")) is None:
            pass  # where new keys begin, of which there are none
        elif keyword == "rotary_seqlens" and "rotary_cos" in own:
            every = by_place | named
            if not (value is None or every.get("rotary_cos") is None or value is every.get("cache_seqlens")):
                raise _refusal(name, keyword, value)
        elif keyword in _CHOICES:
            if value is not None and not isinstance(value, int):
                raise TypeError(f"{name}: {keyword} must be a number, or None, got {type(value).__name__}")
        elif keyword in _REFUSED or keyword in _NAMES:
            if value is not None and not (isinstance(value, int) and value == 0):
                raise _refusal(name, keyword, value)
        else:
            raise TypeError(f"{name}() got an unexpected keyword argument {keyword!r}")
    if return_lse:
        if flag(name, "return_attn_probs", known.get("return_attn_probs", False)):
            raise ValueError(f"{name}: {return_lse} must be False with return_attn_probs, got True")
        known["return_attn_probs"] = LSE_ALONE
    return known


def _refusal(name: str, keyword: str, value: Any) -> NotImplementedError:
    why = _REFUSED.get(keyword, "there is no cache")
    return NotImplementedError(f"{name}: {keyword} must be None, got {shown(value)}: {why}")


@contextmanager
def renamed(names: Mapping[str, str]) -> Iterator[None]:
    """Names the arguments of a function in messages about those that they become."""
    try:
        yield
    except (TypeError, ValueError, NotImplementedError) as error:
        function, colon, text = str(error).partition(": ")
        text = re.sub(r"(?<![\w.'])\w+(?![\w'])", lambda word: names.get(word[0], word[0]), text)
        raise type(error)(function + colon + text) from error


def take_flags(function: str, given: dict[str, Any]) -> tuple[bool, bool]:
    """Whether the LSE is wanted, and with it a third result."""
    flag(function, "deterministic", given.pop("deterministic", False))  # it always is
    wanted = given.pop("return_attn_probs", False)
    alone = wanted is LSE_ALONE
    return_lse = alone or flag(function, "return_attn_probs", wanted)
    return return_lse, return_lse and not alone
