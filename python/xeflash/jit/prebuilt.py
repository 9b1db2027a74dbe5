"""The kernels that the wheel carries: the shapes of today's models, compiled when the package is built."""

from __future__ import annotations

from collections.abc import Iterator

from xeflash.tune.desc import Desc

_DTYPES = ("float32", "bfloat16", "float16")


def default_set() -> Iterator[Desc]:
    """Forward and decode for head dims 64 and 128 (Llama, Mistral, Qwen, GPT-OSS, Phi) and 256 (Gemma)."""
    for arch in ("cpu-avx512-bf16", "cpu-avx512", "cpu-generic"):
        for dtype in _DTYPES:
            if arch == "cpu-avx512" and dtype != "bfloat16":
                continue  # the same code as for cpu-avx512-bf16
            for head_dim in (64, 128):
                yield Desc("flash_fwd", arch, dtype, head_dim, head_dim, 64)
                for rows in (1, 4, 8):  # heads that share a KV head
                    yield Desc("flash_decode", arch, dtype, head_dim, head_dim, rows)
            if arch != "cpu-generic":
                yield Desc("flash_fwd", arch, dtype, 256, 256, 64, hooks=("SoftCap",))
                yield Desc("flash_decode", arch, dtype, 256, 256, 2, hooks=("SoftCap",))
    for head_dim, hooks in ((64, ()), (128, ()), (256, ("SoftCap",))):
        yield Desc("flash_fwd", "cpu-amx-bf16", "bfloat16", head_dim, head_dim, 64, hooks=hooks)
    for arch, access in (("pvc", "block2d"), ("bmg", "block2d"), ("dg2", "dwords")):
        for dtype in ("bfloat16", "float16"):
            for head_dim in (64, 128):
                yield Desc("flash_fwd", arch, dtype, head_dim, head_dim, 128, access=access)  # prompts of 65 or more
