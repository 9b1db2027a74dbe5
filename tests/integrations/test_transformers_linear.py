"""Models whose linear layers are ours give what they gave, and are what they were afterwards."""

import copy
import pickle

import pytest
import torch
from patched import LAYERS, calls_of_linear, close, generate
from tiny_models import decoder, prompts
from torch import nn
from transformers.pytorch_utils import Conv1D
from xeflash.integrations.transformers_linear import patch, unpatch

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture
def calls(monkeypatch):
    return calls_of_linear(monkeypatch)


# ---- dense --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "phi"])  # without biases, and with them
def test_a_dense_model_generates_the_same_tokens(name, calls):
    model = decoder(name).requires_grad_(False)
    want, state = generate(model), dict(model.state_dict())
    done = patch(model)
    assert set(done.swapped) == {n for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    assert set(done.swapped.values()) == {"float32"} and done.left == {}
    assert torch.equal(generate(model), want) and len(calls) == 9 * len(done.swapped)
    assert all(
        model.state_dict()[key] is not None and torch.equal(model.state_dict()[key], x) for key, x in state.items()
    )
    assert list(model.state_dict()) == list(state)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_of_16_bits_gives_logits_as_good_as_its_own(dtype, calls):
    model = decoder("llama").requires_grad_(False)
    exact = model(**prompts()).logits
    model = model.to(dtype)
    own = model(**prompts()).logits.float()
    assert set(patch(model).swapped.values()) == {str(dtype).removeprefix("torch.")}
    ours = model(**prompts()).logits.float()
    assert len(calls) == LAYERS
    assert (ours - exact).abs().max() <= 2 * (own - exact).abs().max()


def test_unpatch_gives_the_forwards_back(calls):
    model = decoder("llama").requires_grad_(False)
    before = {name: dict(module.__dict__) for name, module in model.named_modules()}
    names = list(patch(model).swapped)
    assert unpatch(model) == names and unpatch(model) == []
    for name, module in model.named_modules():
        assert set(module.__dict__) == set(before[name])
    model(**prompts())
    assert calls == []


def test_unpatch_leaves_what_was_put_around_ours(calls):
    layer = nn.Linear(40, 7).requires_grad_(False)
    patch(layer)
    ours = layer.forward
    layer.forward = lambda x: ours(x) + 1
    assert unpatch(layer) == [""]
    x = torch.randn(2, 40)
    torch.testing.assert_close(layer(x), nn.functional.linear(x, layer.weight, layer.bias) + 1)
    assert calls == []


def test_patching_twice_is_patching_once(calls):
    model = nn.Sequential(nn.Linear(40, 7)).requires_grad_(False)
    assert patch(model) == patch(model)
    model(torch.randn(2, 40))
    assert len(calls) == 1 and unpatch(model) == ["0"] and "forward" not in model[0].__dict__


def test_tied_heads_stay_tied(calls):
    model = decoder("llama", tie_word_embeddings=True).requires_grad_(False)
    patch(model)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    before = model(**prompts()).logits
    model.model.embed_tokens.weight *= 2  # the final norm hides it from all but the head
    close(model(**prompts()).logits, copied_without_ours(model)(**prompts()).logits)
    assert not torch.equal(model(**prompts()).logits, before)


def copied_without_ours(model):
    copied = copy.deepcopy(model)
    unpatch(copied)
    return copied


def test_a_copy_has_its_own_weights(calls):
    model = nn.Sequential(nn.Linear(40, 7)).requires_grad_(False)
    patch(model)
    copied = copy.deepcopy(model)
    copied[0].weight.zero_()
    copied[0].bias.zero_()
    x = torch.randn(2, 40)
    assert not copied(x).any() and model(x).any() and len(calls) == 2


@torch.no_grad()
def test_a_model_that_was_pickled_has_its_own_forwards(calls):
    model = nn.Sequential(nn.Linear(40, 7))
    patch(model)
    again = pickle.loads(pickle.dumps(model))
    x = torch.randn(2, 40)
    torch.testing.assert_close(again(x), nn.functional.linear(x, model[0].weight, model[0].bias))
    patch(again)
    assert calls == [] and again(x).shape == (2, 7) and len(calls) == 1


def test_gradients_reach_inputs_and_biases(calls):
    layer = nn.Linear(40, 7)
    layer.weight.requires_grad_(False)
    own, x = copy.deepcopy(layer), torch.randn(3, 40, requires_grad=True)
    patch(layer)
    for module in (layer, own):
        module(x).square().sum().backward()
    assert len(calls) == 1
    twice, x.grad = x.grad, None
    own(x).square().sum().backward()
    close(twice, 2 * x.grad)
    close(layer.bias.grad, own.bias.grad / 2)


def test_a_weight_that_trains_is_left_to_torch(calls):
    layer = nn.Linear(40, 7)
    patch(layer)
    layer(torch.randn(3, 40)).sum().backward()
    assert layer.weight.grad is not None and calls == []
    with torch.no_grad():
        layer(torch.randn(3, 40))
    assert len(calls) == 1


@torch.no_grad()
def test_what_linear_does_not_take_is_left_to_torch(calls):
    layer = nn.Linear(40, 7)
    patch(layer)
    x = torch.randn(3, 40)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(x).dtype is torch.bfloat16
    assert torch.func.vmap(layer)(x).shape == (3, 7)
    assert torch.func.jvp(layer, (x,), (x,))[1].shape == (3, 7)
    with pytest.raises(RuntimeError, match="dtype"):
        layer(x.double())
    assert layer.double()(x.double()).dtype is torch.float64
    assert calls == []


@torch.no_grad()
@pytest.mark.parametrize("shape", [(40,), (0, 40), (2, 3, 40), (70, 40)])
def test_inputs_have_any_rank(shape, calls):
    layer = nn.Linear(40, 7)
    x = torch.randn(shape)
    want = layer(x)
    patch(layer)
    got = layer(x)
    assert got.shape == want.shape
    assert len(calls) == (shape[0] != 70)  # many rows are torch's
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_torch_compile_sees_one_graph():
    model = nn.Sequential(nn.Linear(40, 7), nn.ReLU(), nn.Linear(7, 5))
    x = torch.randn(3, 40)
    want = model(x)
    patch(model)
    torch.testing.assert_close(torch.compile(model, backend="aot_eager", fullgraph=True)(x), want, rtol=1e-5, atol=1e-5)


# ---- what is left -------------------------------------------------------------------------------


def bitsandbytes_layer(name):
    made = type(name, (nn.Linear,), {"__module__": "bitsandbytes.nn.modules"})
    return made(40, 7)


def unknown(name):
    layer = type(name, (nn.Module,), {"__module__": "hqq.core"})()
    layer.register_buffer("W_q", torch.zeros(7, 40))
    return layer


def other(kind):
    layer = nn.Linear(40, 7)
    if kind == "hook":
        layer._hf_hook = object()
    elif kind == "forward":
        layer.forward = lambda x: x
    elif kind == "float64":
        layer.double()
    elif kind == "attribute":
        weight = layer.weight.detach()
        del layer.weight
        layer.weight = weight
    return layer


LEFT = {
    "4bit": (lambda: bitsandbytes_layer("Linear4bit"), "bitsandbytes' Linear4bit has formats that linear does not read"),
    "8bit": (lambda: bitsandbytes_layer("Linear8bitLt"), "bitsandbytes' Linear8bitLt has formats that linear does not read"),
    "meta": (lambda: nn.Linear(40, 7, device="meta"), "its tensors are on the meta device"),
    "hook": (lambda: other("hook"), "it has a hook of accelerate, which may bring its tensors"),
    "forward": (lambda: other("forward"), "its forward was replaced by somebody else"),
    "subclass": (lambda: type("Own", (nn.Linear,), {})(40, 7), "Own is a subclass of nn.Linear, which may do more"),
    "unknown": (lambda: unknown("HQQLinear"), "HQQLinear of hqq.core is not known here"),
    "gpt-2": (lambda: Conv1D(7, 40), "Conv1D has the inputs of its weight in rows"),
    "lazy": (lambda: nn.LazyLinear(7), "LazyLinear is a subclass of nn.Linear, which may do more"),
    "float64": (lambda: other("float64"), "its weight is strided of float64"),
    "attribute": (lambda: other("attribute"), "its weight is a Tensor, not a parameter"),
}  # fmt: skip


@pytest.mark.parametrize("kind", LEFT)
def test_other_layers_stay_as_they_are_and_are_named(kind):
    make, why = LEFT[kind]
    model = nn.ModuleDict({"other": make(), "own": nn.Linear(40, 7)})
    forward = model["other"].__dict__.get("forward")
    done = patch(model)
    assert done.swapped == {"own": "float32"} and done.left == {"other": why}
    assert model["other"].__dict__.get("forward") is forward and "_xeflash" not in model["other"].__dict__


def test_layers_of_bitsandbytes_are_left():
    bitsandbytes = pytest.importorskip("bitsandbytes")
    model = nn.ModuleDict(
        {"4": bitsandbytes.nn.Linear4bit(64, 8), "8": bitsandbytes.nn.Linear8bitLt(64, 8), "own": nn.Linear(40, 7)}
    )
    done = patch(model)
    assert list(done.swapped) == ["own"]
    assert {name: why.split()[1] for name, why in done.left.items()} == {"4": "Linear4bit", "8": "Linear8bitLt"}


def test_a_model_without_any_layer_of_ours_is_refused():
    with pytest.raises(
        ValueError, match=r"^patch: model must have a linear layer .*, got none; 0: bitsandbytes' Linear4bit"
    ):
        patch(nn.Sequential(bitsandbytes_layer("Linear4bit")))
    with pytest.raises(ValueError, match=r"got none$"):
        patch(nn.ReLU())
    with pytest.raises(TypeError, match=r"^patch: model must be a torch.nn.Module, got list$"):
        patch([nn.Linear(40, 7)])


def test_offloaded_layers_are_left():
    accelerate = pytest.importorskip("accelerate")
    model = nn.Sequential(nn.Linear(40, 7), nn.Linear(7, 5)).requires_grad_(False)
    accelerate.cpu_offload(model[0], execution_device=torch.device("cpu"))
    done = patch(model)
    assert list(done.swapped) == ["1"] and list(done.left) == ["0"]
    assert model(torch.randn(2, 40)).shape == (2, 5)


# ---- LoRA ---------------------------------------------------------------------------------------


def test_base_layers_of_lora_are_ours_and_adapters_train(calls):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    try:
        model = peft.get_peft_model(decoder("llama"), config)
    except ImportError as why:  # of what it needs beside other libraries that are there
        pytest.skip(str(why))
    own = copy.deepcopy(model)
    done = patch(model)
    assert done.left == {} and any(name.endswith("q_proj.base_layer") for name in done.swapped)
    assert any(name.endswith("q_proj.lora_A.default") for name in done.swapped)
    inputs = prompts() | {"labels": prompts()["input_ids"]}
    for each in (model, own):
        each(**inputs).loss.backward()
    assert len(calls) == LAYERS  # and no adapters, which train
    grads = {name: x.grad for name, x in own.named_parameters() if x.requires_grad}
    assert len(grads) == 8
    for name, x in model.named_parameters():
        if x.requires_grad:
            close(x.grad, grads[name], 1e-4)
