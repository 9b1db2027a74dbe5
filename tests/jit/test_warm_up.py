"""warm_up and `xeflash compile --config`: a configuration's kernels are those that calls of its layers ask for."""

import itertools
import json
import os
import subprocess
import sys

import pytest
import torch
import xeflash
from xeflash.cli import main
from xeflash.jit.model_calls import shape_of_rank
from xeflash.jit.precompile import kernels_of, target
from xeflash.jit.provide import source_of
from xeflash.tune.desc import desc_of
from xeflash.tune.model_config import ModelConfig
from xeflash.tune.models import SHAPES, Features, ModelShape

DIM, DIM_V = 144, 112  # no other test has both in bf16: a kernel that is there already would not be asked for
GROUPED = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": DIM, "v_head_dim": DIM_V}
LATENT = {"num_attention_heads": 4, "kv_lora_rank": DIM_V, "qk_nope_head_dim": 48, "qk_rope_head_dim": DIM - DIM_V}
LATENT |= {"v_head_dim": 56}


def rows(*shape, dtype=torch.bfloat16):
    return torch.empty(shape, dtype=dtype)


def calls_on_pages(config, dtype, page, batch, queries, keys):
    shape = ModelConfig("test", config).shape
    heads_k, (dim, dim_v) = (1, shape.latents) if shape.latents else (shape.heads_k, (DIM, DIM_V))
    cache = rows(-(-keys // page), page, heads_k, dim + dim_v, dtype=dtype)
    if shape.latents:
        k, v = cache[..., :dim], cache[..., :dim_v]  # values are the first columns of keys
    else:
        k, v = cache.split((dim, dim_v), -1)  # as vLLM's, a value beside its key
    scales = {"k_scale": 0.5, "v_scale": 0.5} if dtype.itemsize == 1 else {}
    written = (v, k[..., dim_v:]) if shape.latents else (k, v)
    new = [rows(queries, heads_k, x.shape[-1]) for x in written]
    yield lambda: xeflash.write_to_cache(*new, *written, torch.zeros(queries).long(), **scales)
    yield lambda: xeflash.flash_attn_varlen_func(
        rows(batch * queries, shape.heads_q, dim), k, v, torch.arange(batch + 1).int() * queries, None, queries, keys,
        causal=True, block_table=torch.zeros(batch, len(cache)).int(),
        seqused_k=torch.full((batch,), keys).int(), **scales,
    )  # fmt: skip


def calls_on_arrays(config, dtype, page, batch, queries, keys):
    shape = ModelConfig("test", config).shape
    k, v = rows(batch, keys, shape.heads_k, shape.head_dim), rows(batch, keys, shape.heads_k, shape.head_dim_v)
    q, new_k, new_v = rows(batch, queries, shape.heads_q, shape.head_dim), k[:, :1].clone(), v[:, :1].clone()
    yield lambda: xeflash.flash_attn_func(q, k, v, causal=True)
    yield lambda: xeflash.flash_attn_with_kvcache(q, k, v, cache_seqlens=keys - 1, window_size=(9, 0))
    yield lambda: xeflash.flash_attn_with_kvcache(q, k, v, new_k, new_v, cache_seqlens=5, causal=True)


@pytest.mark.parametrize(
    "config, caches, calls, dtype, page",
    [
        (GROUPED, ["dense"], calls_on_arrays, torch.bfloat16, 16),
        (GROUPED, ["paged"], calls_on_pages, torch.bfloat16, 16),
        (GROUPED, ["fp8"], calls_on_pages, torch.float8_e4m3fn, 64),
        (LATENT, ["paged"], calls_on_pages, torch.bfloat16, 64),
        (LATENT, ["paged"], calls_on_arrays, torch.bfloat16, 64),
    ],
    ids=["dense", "paged", "fp8", "latent", "latent-prompts"],
)
def test_calls_ask_for_no_other_kernel(asked, device, config, caches, calls, dtype, page):
    found = kernels_of(
        "test", [ModelConfig("test", config).shape], target(device), ["bfloat16"], caches, page, 1, False
    )
    names = {kernel.name for _, kernel in found}
    appends = "latent" if config is LATENT else ""  # vLLM writes latents by itself
    want = set()
    for batch, queries, keys in itertools.product((1, 2, 3, 16), (1, 2, 5, 6, 16, 17, 40, 100), (100, 600, 3000)):
        described = map(asked, calls(config, dtype, page, batch, queries, keys))
        want |= {source_of(desc_of(values)).name for values in described}
    assert len(want) > 3 and not {name for name in want - names if not (appends and "append" in name)}


LAYER = (Features(causal=True),)
CONFIGS = {
    "Llama": ({"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8}, SHAPES["llama-3-8b"][0]),
    "GPT-2": ({"n_embd": 768, "n_head": 12, "num_key_value_heads": None}, SHAPES["gpt-2"][0]),
    "Gemma 2": (
        {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 256, "attn_logit_softcapping": 50.0},
        ModelShape(16, 8, 256, 256, (Features(causal=True, softcap=50.0),)),
    ),
    "Gemma 3": (
        {"text_config": {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256}, "hidden_size": 1},
        ModelShape(8, 4, 256, 256, LAYER),
    ),
    "GPT-OSS": (
        {"model_type": "gpt_oss", "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64},
        ModelShape(64, 8, 64, 64, (Features(causal=True, sinks=True),)),
    ),
    "Bloom": ({"model_type": "bloom", "hidden_size": 4096, "n_head": 32}, SHAPES["bloom-7b1"][0]),
    "Falcon": (
        {"hidden_size": 4544, "num_attention_heads": 71, "num_kv_heads": 71, "multi_query": True, "alibi": False},
        ModelShape(71, 1, 64, 64, LAYER),
    ),
    "DeepSeek V3": (
        {
            "num_attention_heads": 128,
            "num_key_value_heads": 128,
            "head_dim": 64,
            "kv_lora_rank": 512,
            "qk_nope_head_dim": 128,
            "qk_rope_head_dim": 64,
            "v_head_dim": 128,
        },
        SHAPES["deepseek-v3"][0],
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configurations_are_read(name, tmp_path):
    config, want = CONFIGS[name]
    (tmp_path / "config.json").write_text(json.dumps(config | {"torch_dtype": "float16"}))
    for form in (config | {"dtype": torch.float16}, tmp_path, str(tmp_path / "config.json")):
        read = ModelConfig("warm_up", form)
        assert read.shape == want and read.dtype == "float16"


HEADS = {"num_attention_heads": 4, "head_dim": 64, "dtype": "float32"}
REFUSED = [
    ({"head_dim": 64}, {}, ValueError, "config needs num_attention_heads or n_head or decoder_attention_heads"),
    ({"num_attention_heads": 4}, {}, ValueError, "config needs head_dim"),
    (HEADS | {"dtype": None}, {}, ValueError, "config needs dtype or torch_dtype"),
    (HEADS | {"num_attention_heads": [4]}, {}, ValueError, r"must have a positive integer as num_att.*, got \[4\]"),
    (HEADS | {"kv_lora_rank": 64}, {}, ValueError, "config needs qk_nope_head_dim"),
    (HEADS | {"global_head_dim": 512}, {}, NotImplementedError, "one kind of heads, got global_head_dim = 512"),
    (HEADS | {"per_layer_config": {"5": {"head_dim": 8}}}, {}, NotImplementedError, "got per_layer_config = "),
    (HEADS | {"num_key_value_heads": 3}, {}, ValueError, r"k.heads must divide q.heads \(4\), got 3"),
    (HEADS, {"dtype": "int8"}, ValueError, "dtype must be of float32, bfloat16, float16, got 'int8'"),
    (HEADS, {"caches": ["ring"]}, ValueError, "caches must be of dense, paged, fp8, got 'ring'"),
    (HEADS, {"caches": "ring"}, ValueError, "caches must be of dense, paged, fp8, got 'ring'"),
    (HEADS, {"tensor_parallel_size": 3}, ValueError, r"tensor_parallel_size must divide the heads .*\(4\), .*, got 3"),
    (HEADS, {"jobs": 0}, ValueError, "jobs must be positive, got 0"),
    (HEADS, {"page_size": 8}, ValueError, "page_size must be a multiple of 16, got 8"),
    (HEADS, {"device": "cuda"}, ValueError, "device must be of cpu, xpu, .*, got 'cuda'"),
    (7, {}, TypeError, "config must be a path, a mapping, or a configuration of Transformers, got int"),
    ("nowhere", {}, ValueError, "nowhere must be a file of JSON, or its folder: .*No such file"),
]


@pytest.mark.parametrize("config, more, error, message", REFUSED)
def test_what_is_missing_is_named(config, more, error, message):
    with pytest.raises(error, match=f"^warm_up: .*{message}"):
        xeflash.warm_up(config, **{"device": "cpu", **more})


@pytest.mark.parametrize(
    "name, ranks, heads", [("llama-3-8b", 4, (8, 2)), ("llama-3-8b", 16, (2, 1)), ("gpt-2", 6, (2, 2))]
)
def test_ranks_have_shares_of_the_heads(name, ranks, heads):
    (shape,) = SHAPES[name]
    assert shape_of_rank("test", shape, ranks) == shape._replace(heads_q=heads[0], heads_k=heads[1])


def test_the_command_names_the_file_and_what_it_lacks(tmp_path, capsys):
    file = tmp_path / "config.json"
    file.write_text('{"num_attention_heads": 4}')
    assert main(["compile", "--config", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"xeflash compile: {file} needs head_dim\n"
    file.write_text("[4]")
    assert main(["compile", "--config", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"xeflash compile: {file} must hold an object of JSON, got list\n"


# Serves a tiny model from a plain cache and from pages, in a process whose cache folder was filled.
RUN = """
import torch, transformers, xeflash
from xeflash.integrations.transformers import XeCache, register

config = transformers.LlamaConfig(
    vocab_size=50, hidden_size=64, intermediate_size=32, num_hidden_layers=1, num_attention_heads=4,
    num_key_value_heads=2, head_dim=16,
)
model = transformers.AutoModelForCausalLM.from_config(config).eval()
model.set_attn_implementation(register())
for rows, length in ((1, 5), (2, 30), (1, 100)):
    ids = torch.ones(rows, length, dtype=torch.int64)
    mask = torch.ones_like(ids)
    model.generate(ids, attention_mask=mask, max_new_tokens=3, do_sample=False, cache=XeCache(config))
k, v = torch.zeros(2, 70, 16, 2, 16)
table = torch.arange(70).int().view(2, 35)
for n, keys in ((1, 20), (3, 20), (17, 20), (40, 100), (1, 550), (20, 550)):
    starts, lengths = torch.tensor([0, n, 2 * n]).int(), torch.tensor([keys, n]).int()
    q = torch.zeros(2 * n, 4, 16)
    xeflash.flash_attn_varlen_func(
        q, k, v, starts, None, n, keys, causal=True, block_table=table, seqused_k=lengths
    )
new = torch.zeros(2, 1, 2, 16)
xeflash.write_to_cache(new[:, 0], new[:, 0], k, v, torch.tensor([7, 40]))
xeflash.flash_attn_with_kvcache(torch.zeros(2, 1, 4, 16), k, v, new, new, cache_seqlens=lengths, block_table=table)
"""


@pytest.mark.wide
def test_serving_compiles_nothing_after_it(tmp_path):
    pytest.importorskip("transformers")
    log = tmp_path / "log"
    environment = os.environ | {"XEFLASH_CACHE_DIR": str(tmp_path / "cache"), "XEFLASH_KERNEL_LOG": str(log)}

    def run(*words):
        done = subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        loaded = [json.loads(line) for line in log.read_text().splitlines()]
        log.unlink()
        return {line["kernel"]: line["compiled"] for line in loaded}

    config = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "dtype": "float32"}
    made = run("-c", f"import xeflash; xeflash.warm_up({config}, device='cpu', jobs=2)")
    used = run("-c", RUN)
    assert all(made.values()) and len(used) > 5 and set(used) <= set(made) and not any(used.values())
