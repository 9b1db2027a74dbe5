"""One part of an attention: some queries attend to some keys, and the result joins those of other parts.

    out, lse = torch.empty(..., dtype=float32), torch.full(..., -inf)
    for keys, values in parts:
        attention_part(q, keys, values, out, lse, **call)  # softmax over all keys that there were so far

The kernels are those of a whole attention, except that their results join the results in memory, in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

import xeflash.jit  # noqa: F401  gives the extension its kernels
from xeflash import _core
from xeflash.call.schema import BHSD, LEARNED


def attention_part(q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, **call: Any) -> None:
    """Adds the attention of q to these keys to (out, lse), float32, in place.

    Args:
        out: of the shape of q with v's head dim; it may hold anything where lse is -inf.
        lse: (batch, heads, rows), or (heads, tokens) of packed sequences; rows lie side by side. -inf: no key yet.
        call: the extension's keywords: function, layout, softmax_scale, causal, window_left, window_right, softcap,
            alibi_slopes, s_aux (of one part alone), score_mod (a snippet), dropout_p, seed, offset, cu_seqlens_q,
            cu_seqlens_k, max_seqlen_q, max_seqlen_k; and where the part lies: q_start and k_start, positions of the
            first row of q and of k (numbers, or int32 tensors with one for each sequence); first_head and all_heads,
            which of all heads those of q are. Row i sees key j by their positions.
    """
    given = {"function": "attention_part", "bottom_right": False, **call}
    _, joint = _core.forward(q=q, k=k, v=v, out=out, other_lse=lse.contiguous(), **given)
    lse.copy_(joint)


def attention_part_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    lse: Tensor,
    delta: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    *,
    wanted: Sequence[str] = (),
    captures: Sequence[tuple[str, Tensor]] = (),
    **call: Any,
) -> dict[str, Tensor]:
    """Adds this part's gradients to dq, dk and dv, float32, in place (None: not wanted).

    Returns those that `wanted` names ("alibi_slopes", "s_aux", "captures['NAME']"), of this part alone. lse is that of
    all parts, delta what ``delta_of`` gave. `captures` are the captured tensors of the snippet, by name, in order.
    """
    given = {"function": "attention_part_backward", "bottom_right": False, **call}
    sums = {name: x for name, x in (("dq", dq), ("dk", dk), ("dv", dv)) if x is not None}
    names = (*(name[1:] for name in sums), *wanted)
    *gradients, capture_gradients = _core.backward(
        q=q, k=k, v=v, dout=dout, lse=lse.contiguous(), delta=delta.contiguous(), longer=True, wanted=names,
        **sums, **given,
    )  # fmt: skip
    found = {name: x for name, x in zip(LEARNED, gradients, strict=True) if name in wanted}
    if learned := [(f"captures[{name!r}]", x) for name, x in captures if f"captures[{name!r}]" in wanted]:
        parts = capture_gradients.split([x.numel() for _, x in learned])
        found |= {name: part.view(x.shape) for (name, x), part in zip(learned, parts, strict=True)}
    return found


def delta_of(dout: Tensor, out: Tensor, dlse: Tensor | None, layout: int) -> Tensor:
    """Computes rowsum(dO O) - dLSE, laid out as the LSE; out is that of all parts, in float32."""
    dots = (dout.float() * out).sum(-1)
    delta = (dots if layout == BHSD else dots.mT).contiguous()
    return delta if dlse is None else delta.sub_(dlse)
