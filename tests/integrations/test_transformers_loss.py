"""A model that makes its loss without logits learns what it learned, and is what it was afterwards."""

import copy
import inspect
import pickle

import pytest
import torch
import transformers
from cover import few
from families import FAMILIES, NotTiny, tiny
from labelled import MODELS, assert_same_step, calls_of_loss, labelled, model_of, step
from tiny_models import DECODERS, SHAPE, VOCABULARY, LargestResult, prompts
from torch import nn
from torch.nn import functional
from transformers import AutoModelForCausalLM
from xeflash.integrations.transformers_linear import patch, unpatch

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture
def losses(monkeypatch):
    return calls_of_loss(monkeypatch)


# ---- losses and gradients -----------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_losses_and_gradients_are_those_of_logits(name, losses):
    model = model_of(name)
    own = copy.deepcopy(model)
    assert patch(model, loss=True).loss == "lm_head"
    shifted = functional.pad(labelled()["labels"], (0, 1), value=-100)[:, 1:].contiguous()
    for more in ({}, {"num_items_in_batch": 7}, {"num_items_in_batch": torch.tensor(9)}, {"shift_labels": shifted}):
        assert_same_step(step(model, labelled(), **more), step(own, labelled(), **more))
    assert len(losses) == 4
    assert [call["reduction"] for call in losses] == ["mean", "sum", "sum", "mean"]
    if name == "gemma2":
        assert losses[0]["softcap"] == 2.0
    if name in ("cohere", "granite"):
        assert losses[0]["logit_scale"] == {"cohere": 0.3, "granite": 1 / 3}[name]
    assert (losses[0]["linear_bias"] is not None) == (name == "phi")


SAMPLED = ["bert", "bloom", "codegen", "exaone4", "gemma", "gptj", "internlm3", "mamba", "modernbert-decoder", "opt"]
SAMPLED += ["dory", "qwen3_moe", "recurrent_gemma"]
OTHER_HEADS = {"dory": "DoryLMHead"}


@pytest.mark.parametrize("family", few(FAMILIES, *SAMPLED))
def test_every_family_learns_the_same_or_is_refused_by_name(family, losses):
    try:
        model = tiny(family)
    except NotTiny as why:
        pytest.skip(str(why))
    ids = prompts()["input_ids"]
    inputs = {"input_ids": ids, "labels": ids.clone()}
    inputs["labels"][0, :3] = -100
    try:
        want = step(model, inputs)
    except Exception as why:  # whatever a tiny configuration makes of a model
        pytest.skip(f"it does not train: {why}")
    want = want[0], {name: x.clone() for name, x in want[1].items()}
    if family in OTHER_HEADS:
        with pytest.raises(NotImplementedError, match=rf"head of \w+ .*, but it is a {OTHER_HEADS[family]} of"):
            patch(model, layers=False, loss=True)
        return
    patch(model, layers=False, loss=True)
    got = step(model, inputs)
    assert len(losses) == 1
    assert_same_step(got, want, relative=1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_in_16_bits_the_loss_is_nearer_to_float64_than_that_of_logits(name):
    model = model_of(name).bfloat16()
    inputs = labelled(padded=False)
    with torch.no_grad():
        hidden = model.model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])[0].double()
    weight = model.lm_head.weight.detach().double().requires_grad_()
    logits = functional.linear(hidden, weight)[:, :-1].reshape(-1, VOCABULARY)
    if name == "gemma2":
        logits = 2 * torch.tanh(logits / 2)
    exact = functional.cross_entropy(logits, inputs["labels"][:, 1:].reshape(-1))
    exact.backward()
    model.model.embed_tokens.requires_grad_(False)  # of heads that are tied
    own = copy.deepcopy(model)
    patch(model, loss=True)
    errors = []
    for each in (model, own):
        each.lm_head.weight.requires_grad_(True)
        out, _ = step(each, inputs)
        errors.append((abs(out.loss.item() - exact.item()), float((each.lm_head.weight.grad - weight.grad).norm())))
    assert errors[0][0] <= errors[1][0] + 1e-6
    if model.lm_head.weight is not model.model.embed_tokens.weight:
        assert errors[0][1] <= 1.05 * errors[1][1]


def test_tied_weights_get_both_gradients():
    model = model_of("llama", tie_word_embeddings=True)
    own = copy.deepcopy(model)
    patch(model, loss=True)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert_same_step(step(model, labelled()), step(own, labelled()))


def test_heads_that_do_not_learn_pass_gradients():
    model = model_of("llama")
    model.lm_head.requires_grad_(False)
    own = copy.deepcopy(model)
    patch(model, loss=True)
    got = step(model, labelled())
    assert model.lm_head.weight.grad is None
    assert_same_step(got, step(own, labelled()))


def test_logits_are_nowhere():
    model = model_of("llama", vocab_size=3000)
    ids = torch.randint(3, 3000, (2, 300), generator=torch.Generator().manual_seed(0))
    largest = []
    for patched in (False, True):
        if patched:
            patch(model, loss=True)
        with LargestResult() as seen:
            step(model, {"input_ids": ids, "labels": ids})
        largest.append(seen.elements)
    assert largest[0] >= ids.numel() * 3000 and largest[1] <= 3000 * SHAPE["hidden_size"]  # a gradient


def test_checkpoints_change_nothing():
    model = model_of("llama")
    patch(model, loss=True)
    want = step(model, labelled(), use_cache=False)
    want = want[0], {name: x.clone() for name, x in want[1].items()}
    model.gradient_checkpointing_enable({"use_reentrant": False})
    got = step(model, labelled(), use_cache=False)
    assert torch.equal(got[0].loss, want[0].loss)
    assert all(torch.equal(x, want[1][name]) for name, x in got[1].items())


@pytest.mark.parametrize("name", few(["llama", "gemma2"], "gemma2"))
def test_torch_compile_sees_one_graph_without_logits(name):
    torch._dynamo.reset()
    model = model_of(name)
    own = copy.deepcopy(model)
    patch(model, loss=True)
    shapes = []

    def backend(graph, inputs):
        shapes.extend(node.meta["example_value"].shape for node in graph.graph.nodes if "lm_head" in node.name)
        called = {str(node.target) for node in graph.graph.nodes}
        assert any("linear_cross_entropy" in target for target in called), called
        assert not any(node.meta.get("example_value") is not None and _is_logits(node) for node in graph.graph.nodes)
        return graph

    got = step(torch.compile(model, backend=backend, fullgraph=True), labelled(), use_cache=False)
    got = got[0], {name.removeprefix("_orig_mod."): x for name, x in got[1].items()}
    assert_same_step(got, step(own, labelled(), use_cache=False))
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    got = step(compiled, labelled(), use_cache=False)
    got = got[0], {name.removeprefix("_orig_mod."): x for name, x in got[1].items()}
    assert_same_step(got, step(own, labelled(), use_cache=False))
    assert compiled.eval()(**labelled()).logits.shape == (2, 13, VOCABULARY)


def _is_logits(node):
    value = node.meta["example_value"]
    return isinstance(value, torch.Tensor) and value.dim() > 1 and value.shape[-1] == VOCABULARY


@torch.autocast("cpu", dtype=torch.bfloat16)
def test_autocast_makes_the_product_in_16_bits():
    model = model_of("llama")
    own = copy.deepcopy(model)
    patch(model, loss=True)
    (ours, grads), (theirs, own_grads) = step(model, labelled()), step(own, labelled())
    assert ours.loss.dtype is torch.float32 and abs(ours.loss.item() - theirs.loss.item()) < 0.02
    for name, x in own_grads.items():
        assert grads[name].dtype is torch.float32
        assert float((grads[name] - x).norm()) < 0.05 * float(x.norm()), name


# ---- what a call gives --------------------------------------------------------------------------


def test_outputs_are_as_if_logits_were_none():
    model = model_of("llama")
    own = copy.deepcopy(model)
    patch(model, loss=True)
    more = {"output_hidden_states": True, "output_attentions": True}
    got, want = model(**labelled(), **more), own(**labelled(), **more)
    assert type(got) is type(want) and got.logits is None
    assert list(got) == [name for name in want if name != "logits"]
    for ours, theirs in zip(got.hidden_states + got.attentions, want.hidden_states + want.attentions, strict=True):
        torch.testing.assert_close(ours, theirs)
    got, want = model(**labelled(), return_dict=False), own(**labelled(), return_dict=False)
    assert type(got) is tuple and len(got) == len(want) - 1
    torch.testing.assert_close(got[0], want[0])


def test_logits_are_made_without_labels_and_in_evaluation(losses):
    model = model_of("llama")
    own = copy.deepcopy(model)
    patch(model, loss=True)
    torch.testing.assert_close(model(**prompts()).logits, own(**prompts()).logits)
    model.eval()
    got, want = model(**labelled()), own.eval()(**labelled())
    torch.testing.assert_close(got.logits, want.logits)
    torch.testing.assert_close(got.loss, want.loss)
    assert losses == []


def test_kept_logits_are_those_that_count(losses):
    model = model_of("llama")
    own = copy.deepcopy(model)
    patch(model, loss=True)
    inputs = prompts()
    more = {"labels": inputs["input_ids"][:, -4:], "logits_to_keep": 4}
    assert_same_step(step(model, inputs, **more), step(own, inputs, **more))
    with pytest.raises(ValueError, match=r"^linear_cross_entropy: target"):
        model(**labelled(), logits_to_keep=4)


def test_labels_may_be_given_by_place(losses):
    model = model_of("llama")
    patch(model, loss=True)
    place = [*inspect.signature(model.forward).parameters].index("labels")
    inputs = labelled()
    model(inputs["input_ids"], *[None] * (place - 1), inputs["labels"])
    assert len(losses) == 1


def test_a_loss_function_of_the_user_runs(losses):
    model = model_of("llama")
    own = copy.deepcopy(model)
    patch(model, loss=True)

    def smoothed(logits, labels, vocab_size, **kwargs):
        loss = nn.CrossEntropyLoss(label_smoothing=0.2, ignore_index=0)
        return 3 * loss(logits[..., :-1, :].reshape(-1, vocab_size), labels[..., 1:].reshape(-1))

    for each in (model, own):
        each.loss_function = smoothed
    inputs = prompts(padded=True) | {"labels": prompts(padded=True)["input_ids"]}
    assert_same_step(step(model, inputs), step(own, inputs))
    assert losses[0]["label_smoothing"] == 0.2 and losses[0]["ignore_index"] == 0


# ---- what needs logits --------------------------------------------------------------------------

WANTS = {
    "logits.exp": lambda x: x.exp(),
    "__add__ of them": lambda x: x + 1,
    "__setitem__ of them": lambda x: x.__setitem__(0, 1),
    "log_softmax of them": lambda x: functional.log_softmax(x, -1),
    "where of them": lambda x: torch.where(torch.tensor(True), x, 0.0),
    "sum of them": lambda x: torch.sum(x),
    "logits * Tensor": lambda x: x * torch.ones(VOCABULARY),
    "mul of them": lambda x: torch.ones(VOCABULARY) * x,
    "tanh of what is a tanh already": lambda x: x.tanh().tanh(),
    "logits[(Ellipsis, slice(None, 5, None))]": lambda x: x[..., :5],
    "logits[a tensor]": lambda x: x[torch.tensor([0])],
    f"logits.view(2, -1, 13), where {VOCABULARY} are a row": lambda x: x.view(2, -1, 13),
    "cross_entropy(logits) of 3 dimensions, which must be 2": lambda x: functional.cross_entropy(x, torch.zeros(2, 97)),
    "cross_entropy(logits) with weight": lambda x: functional.cross_entropy(
        x.view(-1, VOCABULARY), torch.zeros(26, dtype=torch.long), weight=torch.ones(VOCABULARY)
    ),
    "them as meta": lambda x: x.to(torch.device("meta")),
}  # fmt: skip


@pytest.mark.parametrize("what", WANTS)
def test_what_needs_logits_is_refused_by_name(what):
    model = model_of("llama")
    patch(model, loss=True)
    model.loss_function = lambda logits, labels, **kwargs: WANTS[what](logits)
    with pytest.raises(NotImplementedError) as error:
        model(**labelled())
    assert "patch: with loss=True LlamaForCausalLM may" in str(error.value) and f"but wants {what}" in str(error.value)
    del model._loss_function
    model(**labelled()).loss.backward()


def test_losses_that_are_none_are_refused(losses):
    model = model_of("llama")
    patch(model, loss=True)
    model.loss_function = lambda logits, labels, **kwargs: torch.zeros((), requires_grad=True)
    with pytest.raises(NotImplementedError, match="LlamaForCausalLM to make its loss by cross_entropy, but it did not"):
        model(**labelled())

    class OwnHead(transformers.LlamaForCausalLM):
        def forward(self, input_ids, labels=None):
            hidden = self.model(input_ids).last_hidden_state
            return self.loss_function(functional.linear(hidden, self.lm_head.weight), labels, VOCABULARY)

    own = OwnHead(DECODERS["llama"])
    patch(own, loss=True)
    with pytest.raises(NotImplementedError, match="wants OwnHead to call its head, but it did not"):
        own(input_ids=labelled()["input_ids"], labels=labelled()["labels"])


def wrong_head(kind):
    model = model_of("llama")
    if kind == "subclass":
        model.lm_head = type("Own", (nn.Linear,), {})(64, VOCABULARY)
    elif kind == "hooks":
        model.lm_head.register_forward_hook(lambda *_: None)
    elif kind == "forward":
        model.lm_head.forward = lambda x: x
    elif kind == "float64":
        model.lm_head.double()
    elif kind == "meta":
        model.lm_head.to("meta")
    elif kind == "none":
        model.get_output_embeddings = lambda: None
    elif kind == "accelerate":
        model.lm_head._hf_hook = object()
    return model


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("subclass", "it is a Own of"),
        ("hooks", "it has hooks"),
        ("forward", "its forward was replaced by somebody else"),
        ("float64", "its weight is a Parameter of torch.float64"),
        ("meta", "its weight is on meta"),
        ("none", r"get_output_embeddings\(\) gives None"),
        ("accelerate", "it has a hook of accelerate"),
    ],
)
def test_other_heads_are_refused_and_nothing_is_replaced(kind, why):
    model = wrong_head(kind)
    before = {name: set(module.__dict__) for name, module in model.named_modules()}
    with pytest.raises(
        NotImplementedError,
        match=f"^patch: loss=True wants a head of LlamaForCausalLM that is a plain nn.Linear, but {why}",
    ):
        patch(model, loss=True)
    assert {name: set(module.__dict__) for name, module in model.named_modules()} == before


def test_other_models_are_refused():
    with pytest.raises(
        TypeError, match=r"^patch: model must contain a model of Transformers for loss=True, got Sequential"
    ):
        patch(nn.Sequential(nn.Linear(40, 7)), loss=True)
    with pytest.raises(NotImplementedError, match="wants a forward with labels, but LlamaModel has none"):
        patch(model_of("llama").model, loss=True)
    with pytest.raises(ValueError, match=r"^patch: layers or loss must be True, got layers = False, loss = False$"):
        patch(model_of("llama"), layers=False)


# ---- what it was --------------------------------------------------------------------------------


@pytest.mark.parametrize("layers", [False, True])
def test_unpatch_undoes_all(layers, losses):
    model = model_of("llama")
    before = {name: set(module.__dict__) for name, module in model.named_modules()}
    state = model.state_dict()
    assert patch(model, layers=layers, loss=True) == patch(model, layers=layers, loss=True)
    assert list(model.state_dict()) == list(state)
    assert inspect.signature(model.forward) == inspect.signature(type(model).forward.__get__(model))
    model(**labelled())
    assert len(losses) == 1
    unpatch(model)
    assert {name: set(module.__dict__) for name, module in model.named_modules()} == before
    assert model(**labelled()).logits is not None and len(losses) == 1
    patch(model, layers=layers, loss=True)
    assert patch(model).loss is None
    assert model(**labelled()).logits is not None


def test_saved_weights_are_the_same(tmp_path):
    model = model_of("llama")
    want = copy.deepcopy(model)
    patch(model, loss=True)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(again) is type(want)
    for name, x in want.state_dict().items():
        assert torch.equal(again.state_dict()[name], x)


def test_copies_have_heads_of_their_own(losses):
    model = model_of("llama")
    patch(model, loss=True)
    copied = copy.deepcopy(model)
    with torch.no_grad():
        copied.lm_head.weight.zero_()
    assert copied(**labelled()).loss.item() == pytest.approx(torch.tensor(float(VOCABULARY)).log().item(), rel=1e-6)
    assert model(**labelled()).loss.item() != copied(**labelled()).loss.item()
    assert len(losses) == 3


def test_a_model_that_was_pickled_has_its_own_forwards(losses):
    model = model_of("llama")
    patch(model, loss=True)
    again = pickle.loads(pickle.dumps(model))
    assert again(**labelled()).logits is not None and losses == []
    patch(again, loss=True)
    assert_same_step(step(again, labelled()), step(model, labelled()))
    assert len(losses) == 2
    unpatch(again)
    assert "forward" not in again.__dict__ and "forward" not in again.lm_head.__dict__


def test_resized_vocabularies_are_followed(losses):
    model = model_of("llama")
    patch(model, loss=True)
    model.resize_token_embeddings(VOCABULARY + 5, mean_resizing=False)
    own = copy.deepcopy(model)
    unpatch(own)
    assert_same_step(step(model, labelled()), step(own, labelled()))
    assert len(losses) == 1
