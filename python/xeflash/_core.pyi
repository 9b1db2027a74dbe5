"""The extension, see python/host/module.cpp."""

from collections.abc import Callable
from typing import Any

def forward(
    function: str,
    layout: int,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    cu_q: Any,
    cu_k: Any,
    max_q: int,
    max_k: int,
    used_k: Any,
    bias: Any,
    alibi: Any,
    sinks: Any,
    scale: float | None,
    causal: bool,
    left: int,
    right: int,
    top_left: bool,
    softcap: float,
    dropout: float,
    seed: int,
    offset: int,
    want_lse: bool,
    broadcast_heads: bool,
    score_mod: tuple[str, dict[str, Any]] | None,
    splits: int,
    /,
) -> tuple[Any, Any]: ...

class Cache:
    """CacheRequest in cache.hpp."""

    def __init__(
        self,
        lengths: Any,
        length: int,
        sequences: Any,
        left_pad: Any,
        pages: Any,
        beams: Any,
        k_scale: Any,
        v_scale: Any,
        k: Any,
        v: Any,
        cos: Any,
        sin: Any,
        interleaved: bool,
        /,
    ) -> None: ...

def forward_cached(
    function: str,
    q: Any,
    k_cache: Any,
    v_cache: Any,
    out: Any,
    cu_q: Any,
    cu_k: Any,
    max_q: int,
    max_k: int,
    used_k: Any,
    alibi: Any,
    sinks: Any,
    scale: float | None,
    causal: bool,
    left: int,
    right: int,
    softcap: float,
    want_lse: bool,
    splits: int,
    unified_max: float | None,
    score_mod: tuple[str, dict[str, Any]] | None,
    cache: Cache,
    /,
) -> tuple[Any, Any]: ...
def merge_states(outs: list[Any], lses: list[Any], /) -> tuple[Any, Any]: ...
def standard_attention(q: Any, k: Any, v: Any, causal: bool, scale: float | None, bottom_right: bool, /) -> Any: ...
def set_kernel_provider(
    provider: Callable[[dict[str, Any], int, bool], tuple[bytes, tuple[str, ...], int, int, int, int, int]],
) -> None: ...
def devices() -> list[dict[str, Any]]: ...
def host_queue() -> int: ...
def new_queue(device: int) -> int: ...
def allocate(queue: int, bytes: int) -> tuple[int, Any]: ...
def compile_source(queue: int, source: str, options: list[str], kernel: str) -> tuple[bytes, str]: ...
def compile_spirv(queue: int, spirv: bytes, kernel: str) -> bytes: ...
def time_peak(native: bytes, steps: int, groups: int) -> float: ...
