"""vLLM's engine in this process, models for it, and what its steps were; needs the packages of environment.py."""

from __future__ import annotations

import contextlib
import gc
import random
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import tiny_models
import torch
from transformers import AutoModelForCausalLM, BloomConfig, DeepseekV2Config, DeepseekV3Config
from vllm import LLM, SamplingParams
from vllm import __version__ as version
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory
from vllm.platforms import current_platform
from xeflash.integrations import vllm_backend, vllm_mla

DIM = 64
YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0, "original_max_position_embeddings": 2048,
    "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
}  # fmt: skip
CHANGES = {
    "llama": {},  # grouped queries
    "mistral": {},  # a window
    "gemma2": {"max_position_embeddings": 512},  # softcap; a window in every other layer
    "gpt_oss": {"num_experts_per_tok": 2, "rope_parameters": YARN},  # sinks, and a window
    "mqa": {"num_key_value_heads": 1},
    "deep": {"num_hidden_layers": 6},
}
MODELS = ("llama", "mistral", "gemma2", "gpt_oss", "bloom", "mqa")
NEW = 12  # tokens that are generated
EXACT = 2e-4  # of log probabilities, in fp32, for sums in another order
FULL = -1  # log probabilities of all tokens
VERSION = tuple(map(int, re.match(r"(\d+)\.(\d+)", version).groups()))

LATENT = {  # the head dims of DeepSeek, without experts
    "vocab_size": tiny_models.VOCABULARY, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 4, "kv_lora_rank": 512, "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128, "v_head_dim": 128, "first_k_dense_replace": 2, "max_position_embeddings": 4096,
    "initializer_range": 0.125, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
LATENT_YARN = {
    "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 1024,
    "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
}  # fmt: skip
LATENT_MODELS = ("deepseek_v2", "deepseek_v3")
# vLLM's operator for CPUs rotates pairs of queries (tokens, heads, dim) wrongly, as it takes (tokens, heads * dim): its native
# code has to do so, in all engines.
NATIVE_ROPE = {"custom_ops": ["-rotary_embedding"]}

# vLLM collects garbage eight times in an engine's life, among a million objects that are there to stay.
gc.freeze()
gc.unfreeze = lambda: None


def model(name: str) -> torch.nn.Module:
    if name in LATENT_MODELS:
        torch.manual_seed(0)
        first = DeepseekV2Config(**LATENT, q_lora_rank=None)
        config = DeepseekV3Config(**LATENT, q_lora_rank=96, rope_parameters=LATENT_YARN) if name[-1] == "3" else first
        return tiny_models.random_weights(AutoModelForCausalLM.from_config(config))
    if name != "bloom":
        return tiny_models.decoder("llama" if name in ("mqa", "deep") else name, head_dim=DIM, **CHANGES[name])
    torch.manual_seed(0)
    config = BloomConfig(
        vocab_size=tiny_models.VOCABULARY, hidden_size=4 * DIM, n_layer=2, n_head=4, initializer_range=0.0625,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    return tiny_models.random_weights(AutoModelForCausalLM.from_config(config))  # ALiBi


def saved(name: str, folder: Path) -> str:
    path = folder / name
    if not path.exists():
        model(name).save_pretrained(path)
    return str(path)


def prompts(lengths: tuple[int, ...] = (5, 40, 17, 100, 1, 64), common: int = 0, seed: int = 1) -> list[list[int]]:
    """Of random tokens, of which the first are those of all prompts."""
    draw = random.Random(seed)
    first = [draw.randrange(3, tiny_models.VOCABULARY) for _ in range(common)]
    return [first + [draw.randrange(3, tiny_models.VOCABULARY) for _ in range(n)] for n in lengths]


@dataclass
class Steps:
    """What the backends were asked: (new tokens, keys) of each sequence of each step, and their calls."""

    batches: list[list[tuple[int, int]]] = field(default_factory=list)
    names: Counter = field(
        default_factory=Counter
    )  # forward; with latents forward_mha of prompts, forward_mqa of tokens

    @property
    def calls(self) -> int:
        return self.names.total()

    def note(self, common) -> None:
        new = common.query_start_loc.diff().tolist()
        self.batches.append(list(zip(new, common.seq_lens.tolist(), strict=True)))


WATCHED = (
    (vllm_backend.XeflashMetadataBuilder, "build"),
    (vllm_backend.XeflashImpl, "forward"),
    (vllm_mla.XeflashMLAMetadataBuilder, "build"),
    (vllm_mla.XeflashMLAImpl, "forward_mqa"),
    (vllm_mla.XeflashMLAImpl, "forward_mha"),
)


def watched(kind: type, name: str, steps: Steps):
    """A method that notes its calls first."""
    method = getattr(kind, name)

    def noted(self, *given, **named):
        if name == "build":
            steps.note(named["common_attn_metadata"] if "common_attn_metadata" in named else given[1])
        else:
            steps.names[name] += 1
        return method(self, *given, **named)

    return noted


@contextlib.contextmanager
def engine(path: str, **given):
    """An engine, and the steps that our backends see of it."""
    steps, methods = Steps(), [kind.__dict__.get(name) for kind, name in WATCHED]
    for kind, name in WATCHED:
        setattr(kind, name, watched(kind, name, steps))
    said = {"dtype": "float32", "max_model_len": 256, "enforce_eager": True, "max_num_seqs": 8}
    said |= {"num_gpu_blocks_override": 64}
    made = None
    try:
        made = LLM(path, skip_tokenizer_init=True, disable_log_stats=True, seed=0, **{**said, **given})
        # Once in a process is enough: the second time it trips over what numba has put among the modules.
        type(current_platform).register_triton_kernel_overrides = classmethod(lambda cls: None)
        yield made, steps
    finally:
        if made is not None:
            made.llm_engine.engine_core.shutdown()
            del made
        cleanup_dist_env_and_memory()  # before 0.32, a next model with other groups would get these
        for (kind, name), method in zip(WATCHED, methods, strict=True):
            delattr(kind, name) if method is None else setattr(kind, name, method)


def generate(made, asked: list[list[int]], **more):
    said = SamplingParams(**{"max_tokens": NEW, "temperature": 0, "ignore_eos": True, "detokenize": False, **more})
    return made.generate([{"prompt_token_ids": ids} for ids in asked], said, use_tqdm=False)


def tokens(results) -> list[list[int]]:
    return [list(result.outputs[0].token_ids) for result in results]


def logits(results) -> list[torch.Tensor]:
    """Log probabilities of all tokens where one was generated, a tensor (tokens, vocabulary) per prompt."""
    found = []
    for result in results:
        rows = [[row[i].logprob for i in range(tiny_models.VOCABULARY)] for row in result.outputs[0].logprobs]
        found.append(torch.tensor(rows))
    return found


def eager(name: str, results) -> list[torch.Tensor]:
    """The same by Transformers, of what was generated."""
    made, found = model(name), []
    for result in results:
        ids = [*result.prompt_token_ids, *result.outputs[0].token_ids]
        with torch.no_grad():
            rows = made(torch.tensor([ids])).logits[0, -NEW - 1 : -1]
        found.append(rows.log_softmax(-1))
    return found


def largest(got: list[torch.Tensor], want: list[torch.Tensor]) -> float:
    return max((a - b).abs().max().item() for a, b in zip(got, want, strict=True))


def error(results, exact) -> float:
    """Of log probabilities, up to the first token that is another."""
    total, rows = 0.0, 0
    for mine, good, a, b in zip(tokens(results), tokens(exact), logits(results), logits(exact), strict=True):
        same = next((i for i, (x, y) in enumerate(zip(mine, good, strict=True)) if x != y), NEW - 1) + 1
        total, rows = total + (a[:same] - b[:same]).square().mean(-1).sum().item(), rows + same
    return (total / rows) ** 0.5
