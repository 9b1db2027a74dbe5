"""Every causal language model of Transformers, made tiny by its own configuration."""

from __future__ import annotations

from typing import Any

import torch
from tiny_models import SHAPE, VOCABULARY
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

FAMILIES = tuple(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
LARGEST = 5_000_000  # parameters of a model that is tiny

_SIZES = {
    16: "kv_lora_rank q_lora_rank v_head_dim mamba_d_head linear_key_head_dim linear_value_head_dim",
    64: "d_model n_embd embed_dim word_embed_proj_dim embedding_size lru_width",
    96: "ffn_dim n_inner",
    128: "n_positions n_ctx max_seq_len",
    VOCABULARY: "vocab_size_per_layer_input",
    32: "moe_intermediate_size shared_expert_intermediate_size",
    2: "n_layer n_layers num_layers decoder_layers num_experts_per_tok num_kv_heads linear_num_key_heads",
    1: "encoder_layers n_group topk_group mamba_n_groups",
    4: "n_head n_heads decoder_attention_heads num_heads num_local_experts num_experts n_routed_experts "
    "moe_num_experts linear_num_value_heads",
    8: "qk_rope_head_dim qk_nope_head_dim mamba_n_heads mamba_d_state rotary_dim",
    0.0: "dropout attention_dropout hidden_dropout hidden_dropout_prob attention_probs_dropout_prob resid_pdrop "
    "embd_pdrop attn_pdrop activation_dropout layerdrop resid_dropout residual_dropout embd_dropout",
}
_WANTED = {**SHAPE, "is_decoder": True, "use_cache": False, "max_position_embeddings": 128}
_WANTED |= {name: size for size, names in _SIZES.items() for name in names.split()}


class NotTiny(Exception):
    """A family of which this module makes no tiny model."""


def tiny(family: str) -> Any:
    """A model of a family in fp32, that trains without dropout."""
    kind = CONFIG_MAPPING[family]
    if kind.sub_configs:
        raise NotTiny("it has a configuration in parts")
    try:
        usual = kind()
        known = set(usual.to_dict()) | set(kind.attribute_map)
        wanted = {name: value for name, value in _WANTED.items() if name in known}
        if "qk_rope_head_dim" in known:
            wanted.pop("head_dim", None)
        types = getattr(usual, "layer_types", None)
        computed = (isinstance(getattr(kind, name, None), property) for name in ("layer_types", "layers_block_type"))
        if isinstance(types, list) and not any(computed):
            wanted["layer_types"] = (list(dict.fromkeys(types)) * 2)[:2]
        config = kind(**wanted)
        with torch.device("meta"):
            size = sum(x.numel() for x in AutoModelForCausalLM.from_config(config).parameters())
    except Exception as error:  # of the many that such a configuration raises
        raise NotTiny(str(error)) from error
    if size > LARGEST:
        raise NotTiny(f"it has {size} parameters")
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config).train()
