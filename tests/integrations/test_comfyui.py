"""The attention function and the node of ComfyUI.

They are held to ComfyUI's own attention functions where XEFLASH_TEST_COMFYUI names its folder, and what these import is
installed (einops); else to a stand-in of them, tests/comfy_stand_in.py.
"""

import importlib
import importlib.util
import json
import logging
import os
import sys
from pathlib import Path

import comfy_stand_in
import pytest
import torch
from comfy_stand_in import ModelPatcher
from xeflash.cli import comfyui as command
from xeflash.cli import main
from xeflash.integrations import comfyui

FOLDER = os.environ.get("XEFLASH_TEST_COMFYUI")
GPU_TESTS = ("layouts[xpu-tokens]",)
BATCH, HEADS, ROWS, KEYS, DIM = 2, 4, 37, 23, 64


@pytest.fixture
def comfy(monkeypatch):
    """Its module of attention functions."""
    comfyui._log.cache_clear()
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
    return lines(caplog, logging.WARNING)


def lines(caplog, level):
    return [record.message for record in caplog.records if (record.name, record.levelno) == (comfyui.__name__, level)]


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


def test_calls_that_xeflash_serves_are_logged_once_for_each_use_of_the_node(comfy, caplog):
    caplog.set_level(logging.INFO)
    for _ in range(2):
        comfyui.XeflashAttention().patch(ModelPatcher())
        for dtype in (torch.float32, torch.bfloat16, torch.float32, torch.float64):
            comfyui.attention_xeflash(*inputs(dtype), HEADS)
    served = [f"xeflash attention serves torch.{name} with head dim {DIM} on cpu" for name in ("float32", "bfloat16")]
    assert lines(caplog, logging.INFO) == 2 * served and len(warnings(caplog)) == 2


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


@pytest.fixture
def folder(tmp_path):
    """Looks like ComfyUI's."""
    (tmp_path / "main.py").touch()
    (tmp_path / "custom_nodes").mkdir()
    return tmp_path


def test_command_writes_a_node(comfy, folder, capsys):
    for _ in range(2):
        assert main(["comfyui", str(folder)]) == 0
    (node,) = (folder / "custom_nodes").iterdir()
    said = capsys.readouterr().out
    assert said.count(f"wrote {node}\n") == 2 and f"rm -r {node}\n" in said
    spec = importlib.util.spec_from_file_location("xeflash_attention", node / "__init__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    ((name, its),) = module.NODE_CLASS_MAPPINGS.items()
    assert module.NODE_DISPLAY_NAME_MAPPINGS[name] == "xeflash attention"
    assert its.INPUT_TYPES() == {"required": {"model": ("MODEL",)}} and callable(getattr(its(), its.FUNCTION))
    assert f"Add Node > {its.CATEGORY} > xeflash attention" in said
    assert comfy.get_attention_function("xeflash").__wrapped__ is comfyui.attention_xeflash
    (workflow,) = (node / "example_workflows").iterdir()
    assert f"Templates > {node.name} > {workflow.stem}" in said
    (node / "__init__.py").write_text("# somebody else's")
    assert main(["comfyui", str(folder)]) == 2
    assert "must be written by xeflash" in capsys.readouterr().err
    assert (node / "__init__.py").read_text() == "# somebody else's"


@pytest.mark.parametrize("missing", ("main.py", "custom_nodes"))
def test_command_wants_comfyuis_folder(folder, capsys, missing):
    (folder / missing).rename(folder / "another")
    assert main(["comfyui", str(folder)]) == 2
    rule = f"DIR must be ComfyUI's folder (it has main.py and custom_nodes), got {folder}"
    assert capsys.readouterr().err == f"xeflash comfyui: {rule}\n"


@pytest.mark.parametrize("has", (True, False))
@pytest.mark.parametrize("name", ("venv", ".venv", ""))
def test_command_tells_which_python_needs_xeflash(folder, capsys, name, has):
    if name:
        python = folder / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f"#!/bin/sh\nexit {int(not has)}\n")
        python.chmod(0o755)
    assert main(["comfyui", str(folder)]) == 0
    said = capsys.readouterr().out
    if name:
        pip = f"{python} -m pip install xeflash (or the folder of a checkout)"
        steps = "1. Restart" if has else f"1. Install it: {pip}\n2. Restart"
        assert f"ComfyUI's Python has {'' if has else 'no '}xeflash: {python}\nNext:\n{steps}" in said
    else:
        assert f"a Python that has xeflash, as this has: {sys.executable}\n" in said


@pytest.mark.parametrize("python", ("#!/bin/sh\nexec sleep 60\n", "no program"))
def test_command_does_not_need_the_answer_of_comfyuis_python(folder, capsys, monkeypatch, python):
    monkeypatch.setattr(command, "_SECONDS", 0.2)
    file = folder / "venv" / "bin" / "python"
    file.parent.mkdir(parents=True)
    file.write_text(python)
    file.chmod(0o755)
    assert main(["comfyui", str(folder)]) == 0
    assert f"does not tell whether it has it: {file}\nNext:\n1. Restart" in capsys.readouterr().out


def test_command_names_the_folder_that_it_cannot_write(folder, capsys):
    node = folder / "custom_nodes" / command._NODE
    node.mkdir()
    (node / "__init__.py").write_text(command._SOURCE)
    (node / "example_workflows").touch()
    assert main(["comfyui", str(folder)]) == 2
    assert capsys.readouterr().err == f"xeflash comfyui: {node / 'example_workflows'}: File exists\n"


def test_workflow_gives_the_node_the_checkpoints_model(folder):
    assert main(["comfyui", str(folder)]) == 0
    (file,) = folder.glob("custom_nodes/*/example_workflows/*.json")
    workflow = json.loads(file.read_text())
    nodes = {node["id"]: node for node in workflow["nodes"]}
    ways = set()
    for number, source, slot, target, place, kind in workflow["links"]:
        output, given = nodes[source]["outputs"][slot], nodes[target]["inputs"][place]
        assert number in output["links"] and given["link"] == number and output["type"] == given["type"] == kind
        ways.add((nodes[source]["type"], given["name"], nodes[target]["type"]))
    assert all(given["link"] is not None for node in nodes.values() for given in node["inputs"])
    (name,) = comfyui.NODE_CLASS_MAPPINGS
    assert {way for way in ways if way[1] == "model"} == {
        ("CheckpointLoaderSimple", "model", name),
        (name, "model", "KSampler"),
    }
