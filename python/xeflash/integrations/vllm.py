"""xeflash as an attention backend of vLLM, which finds it by itself: ``register`` is one of its plugins.

    vllm serve MODEL --attention-backend CUSTOM        # vLLM 0.32 has a name of its own for it, too: XEFLASH
    XEFLASH_VLLM=1 vllm serve MODEL                    # the default of what chooses no backend
    XEFLASH_VLLM_SAMPLER=1 vllm serve MODEL            # tokens are drawn by xeflash.sample: vllm_sampler.py

vLLM's platforms for CPUs and for XPU know the names of their own backends, and ignore or refuse others: there, the
plugin is asked before them. A layer that xeflash cannot serve is refused where it was named, and left to vLLM with a
warning where it is the default. VLLM_PLUGINS, a list of names, keeps ``xeflash`` out. The backends are
``xeflash.integrations.vllm_backend`` and ``vllm_mla``; the guide's
page on serving tells which versions of vLLM have run them.
"""

from __future__ import annotations

import importlib
import logging
import os
from typing import Any

NAME = "XEFLASH"
BACKEND = "xeflash.integrations.vllm_backend.XeflashBackend"
MLA_BACKEND = "xeflash.integrations.vllm_mla.XeflashMLABackend"  # DeepSeek's latent attention, under the same names


def check_default() -> bool:
    """Checks XEFLASH_VLLM; returns whether this backend serves layers that name no backend."""
    return _is_on("XEFLASH_VLLM")


def _is_on(variable: str) -> bool:
    """Returns whether a variable of the environment is 1; without it, False."""
    choice = os.environ.get(variable, "0")
    if choice not in ("0", "1"):
        raise ValueError(f"{variable} must be 0 or 1, got {choice!r}")
    return choice == "1"


def register() -> None:
    """Tells vLLM the path of the backend, and its names; the backend is imported when it is chosen."""
    check_default()
    samples = _is_on("XEFLASH_VLLM_SAMPLER")
    registry = importlib.import_module("vllm.v1.attention.backends.registry")
    members = registry.AttentionBackendEnum
    if not members.CUSTOM.is_overridden():  # another plugin may have it
        registry.register_backend(members.CUSTOM, BACKEND)
    if hasattr(members, "register") and NAME not in members.__members__:
        registry.register_backend(NAME, BACKEND)
    platform = type(importlib.import_module("vllm.platforms").current_platform)
    if platform.device_type in ("cpu", "xpu"):
        _ask_before(platform)
        if samples:
            importlib.import_module("xeflash.integrations.vllm_sampler").install()
    if platform.device_type == "cpu":
        _keep_chunks(platform)


def is_ours(member: Any) -> bool:
    """Returns whether a member of vLLM's AttentionBackendEnum names this backend."""
    if member.name == "CUSTOM":
        return bool(member.is_overridden() and member.get_path() == BACKEND)
    return bool(member.name == NAME)


def _asked(selected: Any) -> bool:
    """Returns whether a layer is to be ours: it names this backend, or names none and ours is the default."""
    return check_default() if selected is None else is_ours(selected)


def _why_not(platform: Any, layer: Any) -> list[str]:
    """Returns why this backend cannot serve a layer, which vLLM's AttentionSelectorConfig describes."""
    module, _, name = _path(layer).rpartition(".")
    backend = getattr(importlib.import_module(module), name)
    reasons: list[str] = backend.validate_configuration(
        device_capability=platform.get_device_capability(), **layer._asdict()
    )
    return reasons


def _path(layer: Any) -> str:
    return MLA_BACKEND if layer.use_mla else BACKEND


def _ask_before(platform: Any) -> None:
    """Patches a platform so that a layer gets this backend if it is to be ours and can be served."""
    theirs = platform.get_attn_backend_cls
    if getattr(theirs, "asks_xeflash", False):
        return

    def get_attn_backend_cls(
        cls: Any, selected_backend: Any, attn_selector_config: Any, *more: Any, **named: Any
    ) -> Any:
        if _asked(selected_backend):
            reasons = _why_not(cls, attn_selector_config)
            if not reasons:
                return _path(attn_selector_config)
            why = f"{', '.join(reasons)}: {attn_selector_config}"
            if selected_backend is not None:
                raise ValueError(f"xeflash: {selected_backend.name} cannot serve a layer of this model: {why}")
            logging.getLogger("vllm.xeflash").warning("xeflash leaves a layer to vLLM's own backend: %s", why)
        return theirs(selected_backend, attn_selector_config, *more, **named)

    get_attn_backend_cls.asks_xeflash = True  # type: ignore[attr-defined]
    platform.get_attn_backend_cls = classmethod(get_attn_backend_cls)


def _keep_chunks(platform: Any) -> None:
    """Patches a platform so that models with MLA keep chunked prompts, cached prefixes and their page size.

    vLLM's platform for CPUs turns these off, as its own backend lacks them.
    """
    theirs = platform.check_and_update_config
    if getattr(theirs, "asks_xeflash", False):
        return

    def check_and_update_config(cls: Any, vllm_config: Any) -> None:
        scheduler, cache = vllm_config.scheduler_config, vllm_config.cache_config
        kept = scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens, cache.enable_prefix_caching
        page = cache.block_size
        theirs(vllm_config)
        if _serves_latents(cls, vllm_config, page):
            scheduler.enable_chunked_prefill, scheduler.max_num_batched_tokens, cache.enable_prefix_caching = kept
            if cache.user_specified_block_size:
                cache.block_size = page

    check_and_update_config.asks_xeflash = True  # type: ignore[attr-defined]
    platform.check_and_update_config = classmethod(check_and_update_config)


def _serves_latents(platform: Any, config: Any, page: int) -> bool:
    """Returns whether the layers of a model have MLA, and will be ours."""
    model, attention, cache = config.model_config, config.attention_config, config.cache_config
    if model is None or not model.use_mla or getattr(attention, "backend_per_kind", None):
        return False
    layer = importlib.import_module("vllm.v1.attention.selector").AttentionSelectorConfig(
        head_size=model.get_head_size(),
        dtype=model.dtype,
        kv_cache_dtype=cache.cache_dtype,
        block_size=page if cache.user_specified_block_size else None,
        use_mla=True,
        use_sparse=hasattr(model.hf_text_config, "index_topk"),
    )
    return _asked(attention.backend) and not _why_not(platform, layer)
