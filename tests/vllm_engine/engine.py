"""vLLM's engine in this process, models for it, and what its steps were; needs the packages of environment.py."""

from __future__ import annotations

import contextlib
import gc
import random
from dataclasses import dataclass, field
from pathlib import Path

import tiny_models
import torch
from transformers import AutoModelForCausalLM, BloomConfig
from vllm import LLM, SamplingParams
from vllm.distributed.parallel_state import cleanup_dist_env_and_memory
from vllm.platforms import current_platform
from xeflash.integrations import vllm_backend

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
}
MODELS = ("llama", "mistral", "gemma2", "gpt_oss", "bloom", "mqa")
NEW = 12  # tokens that are generated

# vLLM collects garbage eight times in an engine's life, among a million objects that are there to stay.
gc.freeze()
gc.unfreeze = lambda: None


def model(name: str) -> torch.nn.Module:
    if name != "bloom":
        return tiny_models.decoder("llama" if name == "mqa" else name, head_dim=DIM, **CHANGES[name])
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
    """What the backend was asked: (new tokens, keys) of each sequence of each step, and its calls of forward."""

    batches: list[list[tuple[int, int]]] = field(default_factory=list)
    calls: int = 0

    def note(self, common) -> None:
        new = common.query_start_loc.diff().tolist()
        self.batches.append(list(zip(new, common.seq_lens.tolist(), strict=True)))


@contextlib.contextmanager
def engine(path: str, **given):
    """An engine, and the steps that our backend sees of it."""
    steps, build, forward = Steps(), vllm_backend.XeflashMetadataBuilder.build, vllm_backend.XeflashImpl.forward

    def noted(self, *given, **named):
        steps.note(named["common_attn_metadata"] if "common_attn_metadata" in named else given[1])
        return build(self, *given, **named)

    def counted(self, *arguments, **named):
        steps.calls += 1
        return forward(self, *arguments, **named)

    vllm_backend.XeflashMetadataBuilder.build, vllm_backend.XeflashImpl.forward = noted, counted
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
        vllm_backend.XeflashMetadataBuilder.build, vllm_backend.XeflashImpl.forward = build, forward


def generate(made, asked: list[list[int]], **more):
    said = SamplingParams(**{"max_tokens": NEW, "temperature": 0, "ignore_eos": True, "detokenize": False, **more})
    return made.generate([{"prompt_token_ids": ids} for ids in asked], said, use_tqdm=False)


def tokens(results) -> list[list[int]]:
    return [list(result.outputs[0].token_ids) for result in results]
