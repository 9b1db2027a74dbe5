"""xeflash as an attention backend of vLLM, which finds it by itself: ``register`` is one of its plugins.

    vllm serve MODEL --attention-backend CUSTOM        # where the platform lets one choose
    XEFLASH_VLLM=1 vllm serve MODEL                    # in the place of FLASH_ATTN: XPU accepts no CUSTOM

VLLM_PLUGINS, a list of names, keeps ``xeflash`` out. The backend is ``xeflash.integrations.vllm_backend``.

It is written for the interface that vLLM has in 2026 (``vllm.v1.attention.backend``, keys and values written by
``do_kv_cache_update``), and tested against stand-ins of those classes with the metadata of mixed batches; vLLM itself
has not run it.
"""

from __future__ import annotations

import importlib
import os

BACKEND = "xeflash.integrations.vllm_backend.XeflashBackend"


def places() -> list[str]:
    """The names in vLLM's registry that it takes."""
    choice = os.environ.get("XEFLASH_VLLM", "0")
    if choice not in ("0", "1"):
        raise ValueError(f"XEFLASH_VLLM: must be 0 or 1, got {choice!r}")
    return ["CUSTOM", "FLASH_ATTN"] if choice == "1" else ["CUSTOM"]


def register() -> None:
    """Tells vLLM's registry where the backend is; nothing is imported until it is chosen."""
    registry = importlib.import_module("vllm.v1.attention.backends.registry")
    for place in places():
        registry.register_backend(registry.AttentionBackendEnum[place], BACKEND)
