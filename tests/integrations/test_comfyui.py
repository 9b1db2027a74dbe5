"""The attention function and the node of ComfyUI.

They are held to ComfyUI's own attention functions where XEFLASH_TEST_COMFYUI names its folder, and what these import is
installed (einops); else to a stand-in of them, tests/comfy_stand_in.py.
"""

import importlib
import importlib.util
import os
import sys
from pathlib import Path

import comfy_stand_in
import pytest
import torch
from comfy_stand_in import ModelPatcher
from xeflash.cli import main
from xeflash.integrations import comfyui

FOLDER = os.environ.get("XEFLASH_TEST_COMFYUI")
GPU_TESTS = ("layouts[xpu-tokens]",)
BATCH, HEADS, ROWS, KEYS, DIM = 2, 4, 37, 23, 64


@pytest.fixture
def comfy(monkeypatch):
    """Its module of attention functions."""
    comfyui._warn.cache_clear()
    name = "comfy.ldm.modules.attention"
    if FOLDER:
        monkeypatch.syspath_prepend(FOLDER)
        if name not in sys.modules:
            monkeypatch.setattr(sys, "argv", ["main.py", "--cpu"])
            importlib.import_module("comfy.options").enable_args_parsing()
        module = importlib.import_module(name)
    else:
        module = comfy_stand_in
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(module, "REGISTERED_ATTENTION_FUNCTIONS", {})
    return module


def inputs(dtype=torch.float32, heads_k=HEADS, by_heads=False, rows=ROWS):
    shapes = ((BATCH, rows, HEADS * DIM), (BATCH, KEYS, heads_k * DIM), (BATCH, KEYS, heads_k * DIM))
    given = [torch.randn(shape, dtype=dtype) for shape in shapes]
    return [x.unflatten(-1, (-1, DIM)).transpose(1, 2) for x in given] if by_heads else given


def compare(comfy, caplog, *given, **named):
    """A model's call, that of the node's clone, and that by name; the latter two are ours, or a warning would say no."""
    options = comfyui.XeflashAttention().patch(ModelPatcher())[0].model_options["transformer_options"]
    comfyui.register()
    want = comfy.attention_pytorch(*(x.cpu() if isinstance(x, torch.Tensor) else x for x in given), **cpu(named))
    with torch.no_grad():
        patched = comfy.attention_pytorch(*given, transformer_options=options, **named)
        by_name = comfy.get_attention_function("xeflash")(*given, **named)
    with torch.device("cpu"):
        torch.testing.assert_close(patched.cpu(), want)
        torch.testing.assert_close(by_name.cpu(), want)
    assert not warnings(caplog)
    return want


def warnings(caplog):
    return [record.message for record in caplog.records if record.name == comfyui.__name__]


def cpu(named):
    return {name: x.cpu() if isinstance(x, torch.Tensor) else x for name, x in named.items()}


LAYOUTS = {
    "tokens": (False, False),
    "heads": (True, True),
    "heads-tokens": (True, False),
    "tokens-heads": (False, True),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(device, comfy, caplog, layout):
    skip_reshape, skip_output_reshape = LAYOUTS[layout]
    how = dict(skip_reshape=skip_reshape, skip_output_reshape=skip_output_reshape, attn_precision=torch.float32)
    want = compare(comfy, caplog, *inputs(by_heads=skip_reshape), HEADS, **how)
    assert want.shape == ((BATCH, HEADS, ROWS, DIM) if skip_output_reshape else (BATCH, ROWS, HEADS * DIM))


MASKS = {2: (ROWS, KEYS), 3: (BATCH, ROWS, KEYS), 4: (BATCH, HEADS, ROWS, KEYS), "padding": (BATCH, 1, 1, KEYS)}


@pytest.mark.parametrize("kind", ("additive", "bool"))
@pytest.mark.parametrize("rank", MASKS)
def test_masks(device, comfy, caplog, rank, kind):
    mask = torch.randn(MASKS[rank])
    mask = mask > -1 if kind == "bool" else mask
    compare(comfy, caplog, *inputs(), HEADS, mask)


def test_scale_and_fewer_heads_of_keys(comfy, caplog):
    if FOLDER and "enable_gqa" not in Path(comfy.__file__).read_text():
        pytest.skip("this ComfyUI ignores scale and enable_gqa")
    compare(comfy, caplog, *inputs(heads_k=2), HEADS, scale=0.3, enable_gqa=True, low_precision_attention=False)


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_types_and_inference_mode(comfy, dtype):
    q, k, v = inputs(dtype)
    want = comfy.attention_pytorch(q.double(), k.double(), v.double(), HEADS)
    with torch.inference_mode():
        got = comfyui.attention_xeflash(q, k, v, HEADS)
    assert got.dtype == dtype and got.is_contiguous()
    torch.testing.assert_close(got.double(), want, atol=1e-2, rtol=1e-2)


def test_gradients(comfy, caplog):
    given = [x.requires_grad_() for x in inputs()]
    weight = torch.randn(BATCH, ROWS, HEADS * DIM)
    want, got = (
        torch.autograd.grad((function(*given, HEADS) * weight).sum(), given)
        for function in (comfy.attention_pytorch, comfyui.attention_xeflash)
    )
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    assert not warnings(caplog)


def test_compiled(comfy, caplog):
    given = inputs()
    want = comfyui.attention_xeflash(*given, HEADS)
    torch._dynamo.reset()
    compiled = torch.compile(comfyui.attention_xeflash, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        torch.testing.assert_close(compiled(*given, HEADS), want)
    assert not warnings(caplog)


# ---- what it does not serve ----------------------------------------------------------------------


@pytest.mark.parametrize("case", ("fp64", "keyword"))
def test_refused_calls_are_comfyuis_with_one_warning(comfy, caplog, case):
    given = inputs(torch.float64 if case == "fp64" else torch.float32)
    named = {} if case == "fp64" else {"later_keyword": 3}
    options = comfyui.XeflashAttention().patch(ModelPatcher())[0].model_options["transformer_options"]
    want = comfy.attention_pytorch(*given, HEADS, **named)
    for _ in range(2):
        assert torch.equal(comfy.attention_pytorch(*given, HEADS, transformer_options=options, **named), want)
        assert torch.equal(comfyui.attention_xeflash(*given, HEADS, transformer_options=options, **named), want)
    (line,) = warnings(caplog)
    assert line.endswith("; ComfyUI's attention_pytorch serves the call")
    assert ("float64" if case == "fp64" else "got ['later_keyword']") in line


def test_calls_that_are_wrong_raise_as_comfyuis(comfy):
    q, k, v = inputs()
    for function in (comfy.attention_pytorch, comfyui.attention_xeflash):
        with pytest.raises(RuntimeError):
            function(q, k[..., :-1], v, HEADS)


# ---- the node, and the command that writes it ----------------------------------------------------


def test_node_patches_a_clone(comfy, caplog):
    model, others = ModelPatcher(), ModelPatcher()
    (patched,) = comfyui.XeflashAttention().patch(model)
    comfyui.XeflashAttention().patch(patched)
    assert not warnings(caplog)
    name = "optimized_attention_override"
    assert (
        name in patched.model_options["transformer_options"] and name not in model.model_options["transformer_options"]
    )
    others.model_options["transformer_options"][name] = print
    comfyui.XeflashAttention().patch(others)
    assert warnings(caplog) == ["xeflash attention: it takes the place of another node's attention"]


def test_command_writes_a_node(comfy, tmp_path, capsys):
    nodes = tmp_path / "custom_nodes"
    assert main(["comfyui", str(tmp_path)]) == 2 and "custom_nodes" in capsys.readouterr().err
    nodes.mkdir()
    for _ in range(2):
        assert main(["comfyui", str(tmp_path)]) == 0
    (file,) = nodes.iterdir()
    assert capsys.readouterr().out == 2 * f"wrote {file}\n"
    spec = importlib.util.spec_from_file_location("xeflash_attention", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (node,) = module.NODE_CLASS_MAPPINGS.values()
    assert module.NODE_DISPLAY_NAME_MAPPINGS == {"XeflashAttention": "xeflash attention"}
    assert node.INPUT_TYPES() == {"required": {"model": ("MODEL",)}} and callable(getattr(node(), node.FUNCTION))
    assert comfy.get_attention_function("xeflash").__wrapped__ is comfyui.attention_xeflash
    file.write_text("# somebody else's")
    assert main(["comfyui", str(tmp_path)]) == 2
    assert "must be written by xeflash" in capsys.readouterr().err and file.read_text() == "# somebody else's"
