"""The folder that takes the place of kernels from the Hub: its layout, and Transformers and diffusers with it."""

import importlib.util
import inspect
import json
import os
import subprocess
import sys

import packed
import pytest
import torch
import transformers
from cover import few
from tiny_models import decoder, prompts
from transformers import modeling_flash_attention_utils as flash
from transformers.integrations import hub_kernels
from xeflash.cli import main
from xeflash.integrations import kernel_folder

TWO, THREE = "kernels-community/flash-attn2", "kernels-community/flash-attn3"


def load(place):
    """What the package `kernels` does with a folder."""
    build = place / "build" / "torch-cpu"
    about = json.loads((build / "metadata.json").read_text())
    spec = importlib.util.spec_from_file_location(about["id"], build / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["cpu", pytest.param("xpu", marks=[pytest.mark.gpu, pytest.mark.xpu])])
def place(request):
    if request.param == "xpu":
        request.getfixturevalue("xpu")
    return request.param


@pytest.fixture
def local_kernels(tmp_path, monkeypatch):
    """Transformers finds them: by the package `kernels` if there is one, of whatever release, else by `load`."""
    places = kernel_folder.write(tmp_path)
    monkeypatch.setenv("LOCAL_KERNELS", kernel_folder.local_kernels(places))
    try:
        from kernels import get_kernel as from_package
    except ImportError:
        from_package = None

    def get_kernel(name, revision=None, version=None, allow_all_kernels=False):
        return load(places[name]) if from_package is None else from_package(name, version=version)

    monkeypatch.setattr(hub_kernels, "get_kernel", get_kernel)
    for module in (hub_kernels, transformers.modeling_utils):
        monkeypatch.setattr(module, "is_kernels_available", lambda: True)
    monkeypatch.setattr(flash, "_loaded_implementation", None)


# ---- the folder ----------------------------------------------------------------------------------


def test_command_prints_what_a_shell_is_to_do(tmp_path, capsys):
    folder = tmp_path / "new" / "folder"
    for _ in range(2):
        assert main(["hub", str(folder)]) == 0
        line = capsys.readouterr().out
    done = subprocess.run(["sh", "-c", f'{line}printf %s "$LOCAL_KERNELS"'], capture_output=True, text=True)
    places = dict(entry.split("=") for entry in done.stdout.split(":"))
    assert set(places) == {TWO, THREE, "kernels-community/vllm-flash-attn3"}
    assert {folder / name for name in ("flash-attn2", "flash-attn3")} == {folder / place for place in places.values()}
    ids = set()
    for name, version in (("flash-attn2", 4), ("flash-attn3", 1)):
        for build in ("torch-cpu", "torch-xpu", "torch-universal"):
            about = json.loads((folder / name / "build" / build / "metadata.json").read_text())
            assert (about["name"], about["version"], about["python-depends"]) == (name, version, [])
            ids.add(about["id"])
    assert len(ids) == 4  # modules of a process


def test_what_others_have_written_stays(tmp_path, capsys):
    theirs = tmp_path / "flash-attn3" / "build" / "torch-cpu"
    theirs.mkdir(parents=True)
    (theirs / "metadata.json").write_text('{"id": "theirs"}')
    assert main(["hub", str(tmp_path)]) == 2
    assert f"xeflash hub: {tmp_path / 'flash-attn3'} must be written by xeflash" in capsys.readouterr().err
    assert not (tmp_path / "flash-attn2").exists()
    with pytest.raises(ValueError, match="^hub: the folder must have no ':' in its path"):
        kernel_folder.write(tmp_path / "a:b")


def test_names_that_programs_ask_for(tmp_path):
    places = kernel_folder.write(tmp_path)
    two, three = load(places[TWO]), load(places[THREE])
    for kernel in (two, three):
        assert kernel.flash_attn_interface._flash_attn_forward and kernel.flash_attn_interface._flash_attn_backward
        for name in ("flash_attn_func", "flash_attn_varlen_func"):
            assert {"softcap", "s_aux", "window_size", "deterministic"} <= set(
                inspect.signature(getattr(kernel, name)).parameters
            )
    assert two.flash_attn_interface._flash_attn_varlen_backward and two.bert_padding.unpad_input
    assert "block_table" in inspect.signature(two.flash_attn_with_kvcache).parameters
    assert "page_table" in inspect.signature(three.flash_attn_with_kvcache).parameters
    assert list(inspect.signature(two.flash_attn_func).parameters)[3] == "dropout_p"
    assert list(inspect.signature(three.flash_attn_func).parameters)[3] == "softmax_scale"


# ---- Transformers --------------------------------------------------------------------------------

GPU_TESTS = ("continuous_batching[xpu-llama", "generates[xpu-llama]")


def on(place, name, **how):
    model = decoder(name, **how).to(place)
    if place == "xpu":  # the others count with a type that torch's CPU operators do not take
        model.set_experts_implementation("eager")
    return model


MODELS = ["llama", "mistral", "gemma2", "qwen2", "gpt_oss"]


@pytest.mark.parametrize("name", few(MODELS, "llama", "mistral", "gemma2", "gpt_oss"))
def test_generates(place, local_kernels, name):
    inputs = prompts(padded=True)
    options = dict(max_new_tokens=6, min_new_tokens=6, do_sample=False)
    want = decoder(name).generate(**inputs, **options)
    model = on(place, name, implementation="flash_attention_2")
    assert model.config._attn_implementation.startswith("kernels-community/")
    got = model.generate(**{key: x.to(place) for key, x in inputs.items()}, **options)
    assert got.cpu().tolist() == want.tolist()


BATCHES = [("llama", False), ("mistral", False), ("llama", True)]


@pytest.mark.parametrize(("name", "graphs"), BATCHES, ids=["llama", "mistral", "llama-graphs"])
def test_continuous_batching(place, local_kernels, monkeypatch, name, graphs):
    """With `use_async_batching`, as without it Transformers' stream does not wait for what it has copied on another."""
    texts = [[5, 6, 7, 8, 9, 10, 11], [12, 13, 14], list(range(15, 40))]
    want = []
    for text in texts:
        out = decoder(name).generate(torch.tensor([text]), max_new_tokens=5, min_new_tokens=5, do_sample=False)
        want.append(out[0, len(text) :].tolist())
    model = on(place, name, implementation="flash_attention_2")
    steps, decode = [], flash._flash_with_kvcache_fn
    replays, replay = [], torch.xpu.XPUGraph.replay
    monkeypatch.setattr(torch.xpu.XPUGraph, "replay", lambda graph: replays.append(graph.pool()) or replay(graph))
    monkeypatch.setattr(flash, "_flash_with_kvcache_fn", lambda *a, **more: steps.append(a) or decode(*a, **more))
    out = model.generate_batch(
        inputs=texts,
        generation_config=transformers.GenerationConfig(
            max_new_tokens=5, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=transformers.generation.ContinuousBatchingConfig(
            page_size=16, num_blocks=32, max_batch_tokens=64, use_cuda_graph=graphs, use_async_batching=place == "xpu"
        ),
        progress_bar=False,
    )
    assert [out[key].generated_tokens for key in sorted(out)] == want
    assert (len(replays) > 2 and len(set(replays)) == 1) == (graphs and place == "xpu")
    if place == "xpu" and name == "llama":  # on CPUs, and with windows, Transformers has no block tables
        assert steps and steps[0][1].untyped_storage().data_ptr() == steps[0][2].untyped_storage().data_ptr()


@pytest.mark.parametrize("name", few(["llama", "mistral", "gpt_oss"], "llama", "gpt_oss"))
def test_trains_on_packed_documents(place, local_kernels, name):
    model, want = on(place, name), packed.alone(decoder(name))
    given = packed.collated()
    packed.check(packed.together(model, "flash_attention_2", shape=(1, 26), use_cache=False, **given), want)
    if place == "cpu":  # Transformers looks into positions where there is one row
        want = packed.alone(decoder(name), rows=[1])
        given = {"rows": [1], "position_ids": packed.POSITIONS[1:]}
        packed.check(packed.together(model, "flash_attention_2", use_cache=False, **given), want)


# ---- diffusers -----------------------------------------------------------------------------------


def test_diffusers(tmp_path):
    for module, name in (("diffusers", "diffusers"), ("kernels.layer", "kernels")):
        pytest.importorskip(module, reason=f"{name} is not installed: pip install {name}")
    program = """
import torch
from diffusers.models.attention_dispatch import attention_backend, dispatch_attention_fn
q, k, v = torch.randn(3, 2, 37, 4, 64, dtype=torch.bfloat16)
mask = torch.arange(37) < torch.tensor([[37], [20]])
for name in ("flash_hub", "flash_varlen_hub", "_flash_3_hub", "_flash_3_varlen_hub"):
    for given in (None, mask) if "varlen" in name else (None,):
        with attention_backend(name):
            out = dispatch_attention_fn(q, k, v, attn_mask=given)
        with attention_backend("native"):
            want = dispatch_attention_fn(q, k, v, attn_mask=None if given is None else given[:, None, None])
        torch.testing.assert_close(out, want, atol=2e-2, rtol=2e-2)
"""
    line = kernel_folder.local_kernels(kernel_folder.write(tmp_path))
    env = os.environ | {"LOCAL_KERNELS": line, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
