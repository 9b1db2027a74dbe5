"""Every causal language model of Transformers, made tiny by its own configuration."""

from __future__ import annotations

import sys
from typing import Any

import torch
from tiny_models import SHAPE, VOCABULARY, WINDOW
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

FAMILIES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
LARGEST = 5_000_000  # parameters of a model that is tiny

_SIZES = {
    16: "kv_lora_rank q_lora_rank mamba_d_head linear_key_head_dim linear_value_head_dim o_lora_rank "
    "router_hidden_size hc_lowrank rel_extent hidden_size_per_layer_input",
    64: "v_head_dim index_head_dim indexer_head_dim swa_head_dim",
    256: "d_model n_embd embed_dim word_embed_proj_dim embedding_size lru_width",
    96: "ffn_dim n_inner",
    128: "n_positions n_ctx max_seq_len ngram_vocab_size_base",
    VOCABULARY: "vocab_size_per_layer_input unpadded_vocab_size",
    32: "qk_rope_head_dim qk_nope_head_dim moe_intermediate_size shared_expert_intermediate_size laurel_rank "
    "shared_experts_intermediate_size",
    2: "n_layer n_layers num_layers decoder_layers num_experts_per_tok num_kv_heads linear_num_key_heads o_groups "
    "index_n_heads indexer_n_heads swa_num_key_value_heads hc_mult hc_count",
    1: "encoder_layers n_group topk_group mamba_n_groups indexer_kv_heads n_shared_experts",
    4: "n_head n_heads decoder_attention_heads num_heads num_local_experts num_experts n_routed_experts "
    "moe_num_experts linear_num_value_heads index_topk indexer_budget swa_num_attention_heads",
    8: "mamba_n_heads mamba_d_state rotary_dim",
    WINDOW: "sliding_window sliding_window_size attention_window_size attention_chunk_size",
    0.0: "dropout attention_dropout hidden_dropout hidden_dropout_prob attention_probs_dropout_prob resid_pdrop "
    "embd_pdrop attn_pdrop activation_dropout layerdrop resid_dropout residual_dropout embd_dropout",
}
_WANTED = {**SHAPE, "is_decoder": True, "use_cache": False, "max_position_embeddings": 128}
_WANTED |= {name: size for size, names in _SIZES.items() for name in names.split()}

# What sizes alone do not make of a family: each kind of its layers, and what has to fit together.
_SPECIAL: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "cohere_compass_text": {
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in
                            ("sliding_attention", "full_attention")},
    },
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 1e4, "clip_qkv": 8.0},
             "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 2}},
    "deepseek_v4": {
        "num_hidden_layers": 3,
        "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"],
        "mlp_layer_types": ["hash_moe", "moe", "moe"],
        "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 4},
        "num_key_value_heads": 1,
        "head_dim": 64,
        "partial_rotary_factor": 0.5,
    },
    "dots3_note_text": {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 4,
                        "swa_q_lora_rank": 16, "swa_kv_lora_rank": 16, "swa_head_dim": 64, "swa_qk_nope_head_dim": 32,
                        "swa_v_head_dim": 64},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma3n_text": {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2,
                     "num_kv_shared_layers": 2},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "window_size": WINDOW},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"]},
    "jamba": {"attn_layer_offset": 1, "attn_layer_period": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"head_dim": 8},
    "mpt": {"attn_config": {}},
    "nemotron_h": {"layer_types": ["linear_attention", "moe", "full_attention", "mlp"]},
    "qwen4_exp_text": {"indexer_compress_ratio": 2, "ple_embed_dim": 16},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 4, "layer_types": ["linear_attention", "hybrid"] * 2},
    "zamba2": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2, "adapter_rank": 16},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip


class NotTiny(Exception):
    """A family of which this module makes no tiny model."""


def takes_attention(model: Any) -> bool:
    """Whether layers of a model look for a registered attention; others have one of their own, or none."""
    return hasattr(sys.modules[type(model).__module__], "ALL_ATTENTION_FUNCTIONS")


def _sized(kind: Any, special: dict[str, Any]) -> Any:
    """A small configuration."""
    usual = kind()
    known = set(usual.to_dict()) | set(kind.attribute_map)
    wanted = {name: value for name, value in _WANTED.items() if name in known}
    if "qk_rope_head_dim" in known:
        wanted.pop("head_dim", None)
    if "kv_lora_rank" in known:  # each head has keys of its own
        wanted["num_key_value_heads"] = wanted["num_attention_heads"]
    types = None if "layers_block_type" in special else getattr(usual, "layer_types", None)
    computed = (isinstance(getattr(kind, name, None), property) for name in ("layer_types", "layers_block_type"))
    if isinstance(types, list) and not any(computed):
        wanted["layer_types"] = (list(dict.fromkeys(types)) * 2)[:2]
    wanted |= {name: _sized(part, {}) for name, part in kind.sub_configs.items() if part in CONFIG_MAPPING.values()}
    return kind(**wanted | special)


def tiny_config(family: str) -> Any:
    """The configuration of a tiny model of a family."""
    try:
        config = _sized(CONFIG_MAPPING[family], _SPECIAL.get(family, {}))
        with torch.device("meta"):
            size = sum(x.numel() for x in AutoModelForCausalLM.from_config(config).parameters())
    except Exception as error:  # of the many that such a configuration raises
        raise NotTiny(str(error)) from error
    if size > LARGEST:
        raise NotTiny(f"it has {size} parameters")
    return config


def tiny(family: str) -> Any:
    """A model of a family in fp32, that trains without dropout."""
    config = tiny_config(family)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).train()
