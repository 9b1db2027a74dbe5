"""How vLLM comes to our backend: its plugin, names, the default, what is refused, on its platforms for CPUs and for XPU."""

import importlib
import logging
import sys
import types
from importlib.metadata import entry_points

import pytest
import torch
from vllm.config import SpeculativeConfig
from vllm.platforms.cpu import CpuPlatform
from vllm.plugins import load_general_plugins
from vllm.v1.attention.backends.mla.prefill.registry import MLAPrefillBackendEnum
from vllm.v1.attention.backends.registry import AttentionBackendEnum
from vllm.v1.attention.selector import AttentionSelectorConfig
from xeflash.integrations import vllm as plugin
from xeflash.integrations.vllm_backend import XeflashBackend

LAYER = AttentionSelectorConfig(head_size=64, dtype=torch.bfloat16, kv_cache_dtype="auto", block_size=None)
NAMES = [name for name in ("CUSTOM", plugin.NAME) if name == "CUSTOM" or hasattr(AttentionBackendEnum, "register")]


@pytest.fixture(scope="module", autouse=True)
def loaded():
    load_general_plugins()


@pytest.fixture
def xpu_platform(monkeypatch):
    """vLLM's class for XPU; of vllm_xpu_kernels, which it imports, it needs nothing here."""
    for name in ("", "._C", "._moe_C", "._xpu_C"):
        monkeypatch.setitem(sys.modules, f"vllm_xpu_kernels{name}", types.ModuleType(f"vllm_xpu_kernels{name}"))
    monkeypatch.setattr(torch.accelerator, "get_memory_info", torch.accelerator.get_memory_info)
    yield importlib.import_module("vllm.platforms.xpu").XPUPlatform
    sys.modules.pop("vllm.platforms.xpu")


def test_vllm_loads_the_plugin_by_its_entry_point():
    assert {p.name: p.value for p in entry_points(group="vllm.general_plugins")}["xeflash"] == (
        "xeflash.integrations.vllm:register"
    )
    plugin.register()  # once more changes nothing
    asked = CpuPlatform.get_attn_backend_cls
    plugin.register()
    assert CpuPlatform.get_attn_backend_cls == asked
    for name in NAMES:
        assert AttentionBackendEnum[name].get_class() is XeflashBackend
    assert XeflashBackend.get_name() == NAMES[-1]


@pytest.mark.parametrize("name", NAMES)
def test_a_layer_is_ours_where_it_is_named(name, monkeypatch):
    monkeypatch.delenv("XEFLASH_VLLM", raising=False)
    assert CpuPlatform.get_attn_backend_cls(AttentionBackendEnum[name], LAYER) == plugin.BACKEND
    assert CpuPlatform.get_attn_backend_cls(None, LAYER) != plugin.BACKEND
    refused = LAYER._replace(head_size=100, use_mm_prefix=True)
    with pytest.raises(ValueError, match=f"xeflash: {name} cannot serve .*: head_size not supported, partial multi"):
        CpuPlatform.get_attn_backend_cls(AttentionBackendEnum[name], refused)


def test_it_is_the_default_where_the_environment_says_so(monkeypatch, caplog):
    monkeypatch.setenv("XEFLASH_VLLM", "1")
    assert CpuPlatform.get_attn_backend_cls(None, LAYER) == plugin.BACKEND
    theirs = AttentionBackendEnum.CPU_ATTN.get_path()
    assert CpuPlatform.get_attn_backend_cls(AttentionBackendEnum.CPU_ATTN, LAYER) == theirs
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    assert CpuPlatform.get_attn_backend_cls(None, LAYER._replace(head_size=100)) == theirs
    assert "xeflash leaves a layer to vLLM's own backend: head_size not supported" in caplog.text
    monkeypatch.setenv("XEFLASH_VLLM", "yes")
    with pytest.raises(ValueError, match="XEFLASH_VLLM must be 0 or 1, got 'yes'"):
        plugin.register()


@pytest.mark.parametrize("name", NAMES)
def test_latent_attention_has_a_backend_of_its_own_under_the_same_names(name, monkeypatch):
    monkeypatch.delenv("XEFLASH_VLLM", raising=False)
    latent = LAYER._replace(head_size=576, use_mla=True)
    if "CPU" not in MLAPrefillBackendEnum.__members__:
        with pytest.raises(ValueError, match="MLA needs vLLM 0.29 or newer"):
            CpuPlatform.get_attn_backend_cls(AttentionBackendEnum[name], latent)
        return
    assert CpuPlatform.get_attn_backend_cls(AttentionBackendEnum[name], latent) == plugin.MLA_BACKEND
    for changes, why in (
        ({"use_sparse": True}, "sparse not supported"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "kv_cache_dtype not supported"),
        ({"block_size": 24}, "block_size not supported"),
    ):
        with pytest.raises(ValueError, match=f"{name} cannot serve a layer of this model: .*{why}"):
            CpuPlatform.get_attn_backend_cls(AttentionBackendEnum[name], latent._replace(**changes))


def test_another_plugin_keeps_the_name_custom(monkeypatch):
    custom = AttentionBackendEnum.CUSTOM
    registry = importlib.import_module("vllm.v1.attention.backends.registry")
    monkeypatch.setitem(registry._ATTN_OVERRIDES, custom, "somebody.Else")
    plugin.register()
    assert custom.get_path() == "somebody.Else" and not plugin.is_ours(custom)


def test_on_xpu_it_is_ours_where_it_is_named_or_the_default(xpu_platform, monkeypatch):
    monkeypatch.delenv("XEFLASH_VLLM", raising=False)
    with pytest.raises(ValueError, match="Invalid attention backend for xpu"):  # vLLM's class by itself
        xpu_platform.get_attn_backend_cls(AttentionBackendEnum.CUSTOM, LAYER)
    plugin._ask_before(xpu_platform)
    for name in NAMES:
        assert xpu_platform.get_attn_backend_cls(AttentionBackendEnum[name], LAYER) == plugin.BACKEND
        if "CPU" not in MLAPrefillBackendEnum.__members__:  # vLLM before 0.29
            continue
        latent = LAYER._replace(head_size=576, use_mla=True)
        assert xpu_platform.get_attn_backend_cls(AttentionBackendEnum[name], latent) == plugin.MLA_BACKEND
    theirs = AttentionBackendEnum.FLASH_ATTN.get_path()
    assert xpu_platform.get_attn_backend_cls(None, LAYER) == theirs
    monkeypatch.setenv("XEFLASH_VLLM", "1")
    for dtype in (torch.bfloat16, torch.float32):  # vLLM's own has fp32 by Triton only
        assert xpu_platform.get_attn_backend_cls(None, LAYER._replace(dtype=dtype)) == plugin.BACKEND
    assert xpu_platform.get_attn_backend_cls(AttentionBackendEnum.FLASH_ATTN, LAYER) == theirs


def test_what_it_says_of_itself():
    assert XeflashBackend.get_kv_cache_shape(12, 16, 2, 64) == (12, 2, 16, 128)
    assert sorted(XeflashBackend.get_kv_cache_stride_order()) == list(range(4))
    assert sorted(XeflashBackend.get_kv_cache_stride_order(True)) == list(range(5))
    with pytest.raises(ValueError, match="multiple of 16, got 24"):
        XeflashBackend.get_kv_cache_shape(12, 24, 2, 64)
    assert XeflashBackend.supports_head_size(576) and not XeflashBackend.supports_head_size(100)
    assert XeflashBackend.supports_kv_cache_dtype("fp8") and not XeflashBackend.supports_kv_cache_dtype("nvfp4")
    assert XeflashBackend.supports_block_size(48) and not XeflashBackend.supports_block_size(24)
    assert XeflashBackend.get_impl_cls().supports_dcp


def test_vllm_has_no_trees_of_guesses():
    """Our backend takes the guesses of a step for a chain: a version that has trees again needs a mask from us."""
    assert "TREE_ATTN" not in AttentionBackendEnum.__members__
    with pytest.raises(ValueError, match="speculative_token_tree\n *Unexpected keyword"):
        SpeculativeConfig(method="ngram", num_speculative_tokens=2, speculative_token_tree="[(0,), (1,)]")
