"""ipex.llm.modules.VarlenAttention: packed sequences."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from xeflash.api.route import run
from xeflash.call import random
from xeflash.call.call import Call
from xeflash.call.schema import THD
from xeflash.call.values import seeds

_WORDS = {"q": "query", "k": "key", "v": "value", "cu_seqlens_q": "seqlen_q", "cu_seqlens_k": "seqlen_k"}


def _alibi_may_be_missing(call: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Wraps a function so that alibi_slopes may be left out, as in IPEX for XPU; an integer there is max_seqlen_q."""
    place = 7  # the class, and six tensors before

    @functools.wraps(call)
    def wrapper(*arguments: Any, **named: Any) -> Tensor:
        if len(arguments) > place and isinstance(arguments[place], int):
            arguments = (*arguments[:place], None, *arguments[place:])
        elif len(arguments) <= place:
            named.setdefault("alibi_slopes", None)
        return call(*arguments, **named)

    return wrapper


class VarlenAttention(torch.nn.Module):  # type: ignore[misc]
    """ipex.llm.modules.VarlenAttention: attention of packed sequences, written into ``out``."""

    @classmethod
    @_alibi_may_be_missing
    def apply_function(
        cls,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        seqlen_q: Tensor,
        seqlen_k: Tensor,
        alibi_slopes: Tensor | None,
        max_seqlen_q: int,
        max_seqlen_k: int,
        pdropout: float,
        softmax_scale: float,
        zero_tensors: bool,
        is_causal: bool,
        return_softmax: bool,
        gen_: torch.Generator | None,
        window_size_left: int = -1,
        window_size_right: int = -1,
        softcap: float = -1.0,
    ) -> Tensor:
        """Computes attention of query (tokens, H, D) on key and value (tokens, Hk, D), and writes it into out.

        The B + 1 starts of sequences are seqlen_q and seqlen_k.

        All of ``out`` is written, with or without zero_tensors. Dropout takes its numbers from ``gen_``, or as the
        public functions do. alibi_slopes may be left out.
        """
        return cls.apply_function_flash_varlen(
            query, key, value, out, seqlen_q, seqlen_k, None, None, alibi_slopes, max_seqlen_q, max_seqlen_k, pdropout,
            softmax_scale, zero_tensors, is_causal, window_size_left, window_size_right, return_softmax, gen_, softcap,
        )  # fmt: skip

    @classmethod
    def apply_function_flash_varlen(
        cls,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        seqlen_q: Tensor,
        seqlen_k: Tensor,
        seqused_k: Tensor | None,
        block_tables_: Any,
        alibi_slopes: Tensor | None,
        max_seqlen_q: int,
        max_seqlen_k: int,
        p_dropout: float,
        softmax_scale: float,
        zero_tensors: bool,  # noqa: ARG003
        is_causal: bool,
        window_size_left: int,
        window_size_right: int,
        return_softmax: bool,
        gen_: torch.Generator | None,
        softcap: float = -1.0,
    ) -> Tensor:
        """Computes apply_function with other places of arguments; seqused_k (B,) limits the keys of each sequence."""
        function = "VarlenAttention"
        if return_softmax:
            raise NotImplementedError(f"{function}: return_softmax must be False, got {return_softmax}")
        if block_tables_ is not None:
            raise NotImplementedError(
                f"{function}: block_tables_ must be None, got {type(block_tables_).__name__}. Use PagedAttention"
            )
        drawn = {}
        if p_dropout and gen_ is not None:
            drawn["seed"], drawn["offset"] = seeds(function, query, random.draw(function, gen_))
        given: dict[str, Any] = dict(
            function=function, layout=THD, q=query, k=key, v=value, out=out, cu_seqlens_q=seqlen_q.int(),
            cu_seqlens_k=seqlen_k.int(), max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k,
            seqused_k=None if seqused_k is None else seqused_k.int(),
            softmax_scale=softmax_scale, causal=is_causal, window_left=window_size_left,
            window_right=window_size_right, softcap=max(softcap, 0.0), alibi_slopes=alibi_slopes, dropout_p=p_dropout,
            **drawn,
        )  # fmt: skip
        run(Call(given, _WORDS), learned=())
        return out

    def forward(self, *arguments: Any, **more: Any) -> Tensor:
        """Calls apply_function."""
        return self.apply_function(*arguments, **more)
