"""Writing of keys and values to slots of a paged cache, for servers that choose the place of each token."""

from __future__ import annotations

from typing import Any

from xeflash.api.attention.kv_cache import with_numbers
from xeflash.api.route import run_product
from xeflash.call.bind import public
from xeflash.call.call import Call


@public()
def write_to_cache(
    k: Any, v: Any, k_cache: Any, v_cache: Any, slots: Any, *, k_scale: Any = None, v_scale: Any = None
) -> None:
    """Writes k (tokens, Hk, D) and v (tokens, Hk, Dv) to slots of a paged cache, in place.

    Args:
        k_cache, v_cache: (pages, page, Hk, D) and (pages, page, Hk, Dv), of any strides but in D. Their dtype is that
            of k, or float8_e4m3fn, float8_e5m2 or int8. V may be in 4 bits, as in flash_attn_with_kvcache.
        slots: int64 or int32, for the first tokens: number of the page * page + row in the page. A token whose slot is
            negative is left out. Of tokens with the same slot any one is written.
        k_scale, v_scale: as in flash_attn_with_kvcache, for caches in 8 bits: what k and v are divided by, a number, or
            fp32 of one element, (Hk,) or (tokens, Hk) as slots has tokens; or (pages, page, Hk), which is written, too.

    Slots in host memory are checked. On a device they are trusted, unless XEFLASH_CHECK is 1; a slot past the last page
    is left out there.

    >>> import numpy as np, xeflash
    >>> k_cache, v_cache = (np.zeros((9, 16, 2, 64), np.float32) for _ in range(2))
    >>> k, v = np.ones((2, 3, 2, 64), np.float32)
    >>> xeflash.write_to_cache(k, v, k_cache, v_cache, np.array([35, -1, 0]))
    >>> int(k_cache[2, 3].sum()), int(v_cache.sum())
    (128, 256)
    """


@write_to_cache.body
def write(call: Call) -> None:
    """Writes the keys and values of a call to the slots of its caches."""
    call = with_numbers(call)
    for name, factor in (("k_scale", "k_factor"), ("v_scale", "v_factor")):
        if isinstance(scale := call.get(name), int | float):
            if abs(scale) >= 2**128:  # a schema's floats hold less than an int
                raise call.refuse(name, "must be positive and finite in float32", f"{scale!s:.40}")
            call = call.with_(name, words={factor: call.word(name)}, **{factor: scale})
    run_product("write_to_cache", call, "k", "v", "k_cache", learned=False)
