"""Threads whose first calls of the package meet: `python -m tests.fuzz.first_calls SEED`, in a fresh process.

Each makes a call of another kind, which is the first one of its kind in the process: they load the extension and its
modules, import torch's parts, look for devices, register operators and compile kernels at the same time. All of them
have to end, and to give what the same call gives again when it is alone.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

SECONDS = 100  # more is a deadlock: all stacks are printed, and the process ends
THREADS = 6


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def qkv() -> list[np.ndarray]:
    """(B, S, H, D)."""
    return [drawn(1, rows, 2, 64, seed=rows) for rows in (3, 20, 20)]


def tensors() -> list[Any]:
    """(B, H, S, D)."""
    import torch

    return [torch.from_numpy(x).transpose(1, 2) for x in qkv()]


# ---- kinds of calls; each imports what it needs ------------------------------------------------


def plain_numpy() -> Any:
    import xeflash

    return xeflash.flash_attn_func(*qkv())


def strided_numpy() -> Any:
    """The last axis has to be copied."""
    import xeflash

    return xeflash.flash_attn_func(*(np.repeat(x, 2, axis=-1)[..., ::2] for x in qkv()))


def sinks_of_16_bits() -> Any:
    import ml_dtypes
    import xeflash

    return xeflash.flash_attn_func(*qkv(), s_aux=np.zeros(2, ml_dtypes.bfloat16))


def usm_arrays() -> Any:
    import dpctl
    import torch
    import usm
    import xeflash

    queue = dpctl.SyclQueue(next(d for d in dpctl.get_devices() if d.is_cpu), property="in_order")
    return usm.read(xeflash.flash_attn_func(*(usm.UsmArray(torch.from_numpy(x), queue) for x in qkv())))


def torch_tensors() -> Any:
    import xeflash

    return xeflash.attention(*tensors())


def torch_operator() -> Any:
    import torch
    import xeflash

    # They are there already unless xeflash was imported before torch was. Alone, this statement would lock the module
    # before its package: where two threads lock in two orders, Python gives one of them a module that is half there.
    import xeflash.torch_ops  # noqa: F401

    return torch.ops.xeflash.attention(*tensors(), return_lse=True)[0]


def autocast() -> Any:
    import torch
    import xeflash

    with torch.autocast("cpu", torch.bfloat16):
        return xeflash.attention(*tensors())


def compiled() -> Any:
    import torch
    import xeflash

    return torch.compile(lambda q, k, v: xeflash.attention(q, k, v) + 1, backend="eager", fullgraph=True)(*tensors())


def score_mod() -> Any:
    import xeflash

    return xeflash.flash_attn_func(
        *qkv(), score_mod="s * a + near[k_idx / n]", captures={"near": drawn(20), "a": 0.5, "n": 2}
    )


def cache() -> Any:
    import xeflash

    q, k, v = qkv()
    lengths = np.array([11], np.int32)
    return xeflash.flash_attn_with_kvcache(q, k.copy(), v.copy(), k[:, :3], v[:, :3], cache_seqlens=lengths)


def merged() -> Any:
    import xeflash

    q, k, v = qkv()
    return xeflash.merge_states(*(xeflash.flash_attn_func(q, k, v, return_attn_probs=True)[:2] for _ in range(2)))[0]


def dropout() -> Any:
    import xeflash

    return xeflash.attention(*(x.transpose(0, 2, 1, 3) for x in qkv()), dropout_p=0.25, rng=(1, 2))


def torchs_own() -> Any:
    import torch
    from xeflash.integrations import torch_sdpa

    with torch_sdpa.use_xeflash():
        return torch.nn.functional.scaled_dot_product_attention(*tensors())


def standard() -> Any:
    from xeflash.bench.standard import standard_attention

    return standard_attention(*(x.transpose(0, 2, 1, 3) for x in qkv()))


CALLS: list[Callable[[], Any]] = [
    plain_numpy, strided_numpy, sinks_of_16_bits, usm_arrays, torch_tensors, torch_operator, autocast, compiled,
    score_mod, cache, merged, dropout, torchs_own, standard,
]  # fmt: skip


def main(seed: int) -> None:
    faulthandler.dump_traceback_later(SECONDS, exit=True)
    random = Random(seed)
    torch_first, xeflash_first = random.random() < 0.7, random.random() < 0.3
    chosen = random.sample(CALLS, THREADS)
    if torch_first or {compiled, torchs_own} <= set(chosen):  # torch's own imports are not what is tried here
        import torch

        # Both calls have torch import these. They import each other, so where two threads begin with different ones,
        # Python gives one of them a module that is half there.
        import torch._dynamo
        import torch._inductor  # noqa: F401
    if xeflash_first:
        import xeflash  # noqa: F401
    barrier, results = threading.Barrier(THREADS), dict[str, Any]()

    def first(call: Callable[[], Any]) -> None:
        barrier.wait()
        try:
            results[call.__name__] = call()
        except BaseException as error:
            results[call.__name__] = error

    threads = [threading.Thread(target=first, args=(call,)) for call in chosen]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for call in chosen:
        got = results[call.__name__]
        if isinstance(got, BaseException):
            raise RuntimeError(f"{call.__name__} among {[c.__name__ for c in chosen]}") from got
        again = call()
        assert got.shape == again.shape and bytes_of(got) == bytes_of(again), f"{call.__name__} gives something else"


def bytes_of(x: Any) -> bytes:
    if not isinstance(x, np.ndarray):
        import torch

        x = x.contiguous().view(torch.uint8).numpy()
    return bytes(x.tobytes())


if __name__ == "__main__":
    main(int(sys.argv[1]))
