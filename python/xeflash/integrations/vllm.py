"""xeflash as an attention backend of vLLM, which finds it by itself: ``register`` is one of its plugins.

    vllm serve MODEL --attention-backend CUSTOM        # vLLM 0.32 has a name of its own for it, too: XEFLASH
    XEFLASH_VLLM=1 vllm serve MODEL                    # the default of what chooses no backend

vLLM's platforms for CPUs and for XPU know the names of their own backends, and ignore or refuse others: there, the
plugin is asked before them. A layer that xeflash cannot serve is refused where it was named, and left to vLLM with a
warning where it is the default. VLLM_PLUGINS, a list of names, keeps ``xeflash`` out. The backend is
``xeflash.integrations.vllm_backend``; README tells which versions of vLLM have run it.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

NAME = "XEFLASH"
BACKEND = "xeflash.integrations.vllm_backend.XeflashBackend"


def is_default() -> bool:
    """Whether it serves what names no backend."""
    choice = os.environ.get("XEFLASH_VLLM", "0")
    if choice not in ("0", "1"):
        raise ValueError(f"XEFLASH_VLLM: must be 0 or 1, got {choice!r}")
    return choice == "1"


def register() -> None:
    """Tells vLLM where the backend is, and under which names; the backend is imported when it is chosen."""
    is_default()
    registry = importlib.import_module("vllm.v1.attention.backends.registry")
    members = registry.AttentionBackendEnum
    if not members.CUSTOM.is_overridden():  # another plugin may have it
        registry.register_backend(members.CUSTOM, BACKEND)
    if hasattr(members, "register") and NAME not in members.__members__:
        registry.register_backend(NAME, BACKEND)
    platform = type(importlib.import_module("vllm.platforms").current_platform)
    if platform.device_type in ("cpu", "xpu"):
        _ask_before(platform)


def is_ours(member: Any) -> bool:
    """Whether a member of vLLM's AttentionBackendEnum names this backend."""
    if member.name == "CUSTOM":
        return bool(member.is_overridden() and member.get_path() == BACKEND)
    return bool(member.name == NAME)


def _ask_before(platform: Any) -> None:
    """Where the backend of a layer is chosen, ours is it if it is named or the default, and can serve the layer."""
    theirs = platform.get_attn_backend_cls
    if getattr(theirs, "asks_xeflash", False):
        return

    def get_attn_backend_cls(
        cls: Any, selected_backend: Any, attn_selector_config: Any, *more: Any, **rest: Any
    ) -> Any:
        named = selected_backend is not None and is_ours(selected_backend)
        if named or (selected_backend is None and is_default()):
            module, _, name = BACKEND.rpartition(".")
            backend = getattr(importlib.import_module(module), name)
            reasons = backend.validate_configuration(
                device_capability=cls.get_device_capability(), **attn_selector_config._asdict()
            )
            if not reasons:
                return BACKEND
            why = f"{', '.join(reasons)}: {attn_selector_config}"
            if named:
                raise ValueError(f"xeflash: {selected_backend.name} cannot serve a layer of this model: {why}")
            logging.getLogger("vllm.xeflash").warning("xeflash leaves a layer to vLLM's own backend: %s", why)
        return theirs(selected_backend, attn_selector_config, *more, **rest)

    get_attn_backend_cls.asks_xeflash = True  # type: ignore[attr-defined]
    platform.get_attn_backend_cls = classmethod(get_attn_backend_cls)
