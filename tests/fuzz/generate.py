"""A case from its seed and number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from . import attention, heads, linear, merged, others, product_gradients, softmax, tokens
from .case import Case
from .draw import Draw
from .invalid import Mutation, spoil

FUNCTIONS: dict[str, tuple[int, Callable[[Draw], Case]]] = {
    "attention": (6, attention.attention),
    "flash_attn_func": (4, partial(attention.flash_attn, function="flash_attn_func")),
    "flash_attn_kvpacked_func": (1, partial(attention.flash_attn, function="flash_attn_kvpacked_func")),
    "flash_attn_qkvpacked_func": (1, partial(attention.flash_attn, function="flash_attn_qkvpacked_func")),
    "flash_attn_varlen_func": (4, partial(attention.flash_attn, function="flash_attn_varlen_func")),
    "flash_attn_varlen_kvpacked_func": (1, partial(attention.flash_attn, function="flash_attn_varlen_kvpacked_func")),
    "flash_attn_varlen_qkvpacked_func": (1, partial(attention.flash_attn, function="flash_attn_varlen_qkvpacked_func")),
    "flash_attn_varlen_func on pages": (2, attention.flash_attn_varlen_paged),
    "flash_attn_with_kvcache": (7, attention.flash_attn_with_kvcache),
    "gradients of attention": (2, partial(attention.gradients_of, function="attention")),
    "gradients of flash_attn_func": (1, partial(attention.gradients_of, function="flash_attn_func")),
    "gradients of flash_attn_varlen_func": (1, partial(attention.gradients_of, function="flash_attn_varlen_func")),
    "linear": (3, linear.linear),
    "matmul_softmax": (2, softmax.matmul_softmax),
    "linear_cross_entropy": (2, heads.linear_cross_entropy),
    "linear_log_prob": (2, heads.linear_log_prob),
    "linear_top_k": (2, heads.linear_top_k),
    "linear_argmax": (2, heads.linear_argmax),
    "sample": (2, tokens.sample),
    "linear_sample": (2, tokens.linear_sample),
    "gradients of linear": (1, product_gradients.linear),
    "gradients of matmul_softmax": (1, product_gradients.matmul_softmax),
    "gradients of linear_cross_entropy": (1, product_gradients.linear_cross_entropy),
    "gradients of linear_log_prob": (1, product_gradients.linear_log_prob),
    "merge_states": (2, merged.merge_states),
    "scaled_dot_product_attention": (2, others.scaled_dot_product_attention),
    "varlen_attn": (1, others.varlen_attn),
    "standard_attention": (1, others.standard_attention),
    "IpexSDP": (1, others.ipex_sdp),
    "VarlenAttention": (1, others.ipex_varlen),
    "PagedAttention": (1, others.ipex_paged),
    "reshape_and_cache": (1, others.ipex_slots),
}
MUTATIONS: dict[str, Callable[[Case], Iterator[Mutation]]] = {
    "linear": linear.mutations,
    "matmul_softmax": softmax.mutations,
    "linear_cross_entropy": heads.mutations,
    "linear_log_prob": heads.mutations,
    "linear_top_k": heads.mutations,
    "linear_argmax": heads.mutations,
    "sample": tokens.mutations,
    "linear_sample": tokens.mutations,
}
KINDS = {"cpu": ("numpy", "numpy", "torch", "torch", "usm-cpu"), "gpu": ("usm", "xpu")}


def make(seed: int, number: int, kinds: tuple[str, ...] = KINDS["cpu"], width: str = "usual") -> Case:
    """Each function has a share of the numbers; a third of the cases of our own is invalid."""
    draw = Draw(seed, number, kinds, width)
    weights = [weight for weight, _ in FUNCTIONS.values()]
    name = draw.random.choices(list(FUNCTIONS), weights)[0]
    case = FUNCTIONS[name][1](draw)
    if case.call is not None or not draw.chance(1 / 3):
        return case
    return spoil(draw, case, MUTATIONS[name](case) if name in MUTATIONS else None)
