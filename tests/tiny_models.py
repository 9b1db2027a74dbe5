"""Models of Transformers with random weights, of a few layers, in which attention matters."""

import inspect

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    GptOssConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    PhiConfig,
    Qwen2Config,
)

VOCABULARY = 97
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,  # as in most tests, which share its kernels
    "max_position_embeddings": 4096,
    "initializer_range": 0.0625,  # scores of size 1
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
WINDOW = 9

WITHOUT_GROUPS = {name: value for name, value in SHAPE.items() if name not in ("num_key_value_heads", "head_dim")}

DECODERS = {
    "llama": LlamaConfig(**SHAPE),  # grouped queries
    "mistral": MistralConfig(**SHAPE, sliding_window=WINDOW),
    "qwen2": Qwen2Config(
        **SHAPE, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
    ),  # its last layer
    "gemma2": Gemma2Config(**SHAPE, sliding_window=WINDOW, query_pre_attn_scalar=96, attn_logit_softcapping=5.0),
    "gemma3": Gemma3TextConfig(**SHAPE, sliding_window=WINDOW, query_pre_attn_scalar=64),
    "gpt_oss": GptOssConfig(
        **SHAPE,
        sliding_window=WINDOW,
        num_local_experts=2,
        num_experts_per_tok=1,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    ),  # sinks
    "gpt2": GPT2Config(**WITHOUT_GROUPS, tie_word_embeddings=False),  # reshapes masks
    "phi": PhiConfig(**SHAPE, partial_rotary_factor=0.5),
}

WAYS = {
    "greedy": {"do_sample": False},
    "sampling": {"do_sample": True, "top_k": 20},
    "beams": {"num_beams": 4, "do_sample": False},
    "sampled beams": {"num_beams": 3, "do_sample": True, "top_k": 20},
}


def random_weights(model, seed=0):
    """Weights that are zeros or ones by default become random, too."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.2 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def decoder(name, dtype=torch.float32, implementation="eager", seed=0, **changes):
    config = type(DECODERS[name])(**{**DECODERS[name].to_dict(), **changes})
    torch.manual_seed(seed)
    model = random_weights(AutoModelForCausalLM.from_config(config), seed).to(dtype)
    model.set_attn_implementation(implementation)
    return model


def prompts(rows=2, tokens=13, padded=False):
    """Tokens, and their mask: with padding on the left, less of it in each row and none in the last."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(3, VOCABULARY, (rows, tokens), generator=generator)
    mask = torch.ones_like(ids)
    if padded:
        for row in range(rows - 1):
            mask[row, : 5 + 2 * row] = 0
    return {"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask}


def given_cache(cache):
    """The argument of a model, and of generate, that is its cache: it has this name from Transformers 5.24 on."""
    known = "cache" in inspect.signature(LlamaForCausalLM.forward).parameters
    return {"cache" if known else "past_key_values": cache}


class LargestResult(TorchDispatchMode):
    """The number of elements that the largest result of any operation has memory for."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out
