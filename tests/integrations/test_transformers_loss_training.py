"""Adapters and Trainer: a model that makes its loss without logits learns what it learned."""

import copy

import pytest
import torch
import training
import transformers
from labelled import assert_same_step, calls_of_loss, labelled, model_of, step
from tiny_models import decoder
from training import batches, train
from xeflash.integrations.transformers_linear import patch, unpatch

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


@pytest.fixture
def losses(monkeypatch):
    return calls_of_loss(monkeypatch)


# ---- LoRA ---------------------------------------------------------------------------------------


def lora(model, **named):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    try:
        return peft.get_peft_model(model, peft.LoraConfig(r=4, init_lora_weights=False, **named)).train()
    except ImportError as why:  # of what it needs beside other libraries that are there
        pytest.skip(str(why))


@pytest.mark.parametrize("first", ["patch", "lora"])
def test_adapters_learn_the_same(first, losses):
    model = model_of("llama")
    if first == "patch":
        patch(model, loss=True)
    model = lora(model, target_modules=["q_proj", "down_proj"])
    own = copy.deepcopy(model)
    unpatch(own)
    if first == "lora":
        assert patch(model, loss=True).loss == "base_model.model.lm_head"
    assert_same_step(step(model, labelled()), step(own, labelled()))
    assert len(losses) == 1


@pytest.mark.parametrize(
    ("named", "kind"),
    [
        ({"target_modules": ["q_proj", "lm_head"]}, "Linear of peft"),
        ({"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]}, "ModulesToSaveWrapper of peft"),
    ],
)
def test_heads_with_adapters_are_refused(named, kind):
    with pytest.raises(NotImplementedError, match=f"but it is a {kind}"):
        patch(lora(model_of("llama"), **named), loss=True)
    model = model_of("llama")
    patch(model, loss=True)
    with pytest.raises(NotImplementedError, match=f"but it is a {kind}"):
        lora(model, **named)(**labelled())


# ---- Trainer ------------------------------------------------------------------------------------


def rows(count=12):
    """Rows of which different numbers of tokens count, and a column that no forward takes."""
    made = []
    for batch in batches(count // 2):
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
            labels = ids.masked_fill(mask == 0, -100)
            labels[: 3 * (len(made) % 5)] = -100
            made.append({"input_ids": ids, "attention_mask": mask, "labels": labels, "other": torch.tensor(1)})
    return made


def trained(path, patched, **named):
    """(what is logged, the parameters) after three steps of two batches each."""
    pytest.importorskip("accelerate")
    model = model_of("llama")
    if patched:
        patch(model, loss=True)
    arguments = transformers.TrainingArguments(
        str(path), per_device_train_batch_size=2, gradient_accumulation_steps=2, max_steps=3, logging_steps=1,
        eval_strategy="steps", eval_steps=1, report_to=[], use_cpu=True, save_strategy="no", disable_tqdm=True,
        learning_rate=0.1, optim="sgd", lr_scheduler_type="constant", **named,
    )  # fmt: skip
    trainer = transformers.Trainer(
        model, arguments, train_dataset=rows(), eval_dataset=rows(4),
        compute_metrics=lambda seen: {"right": float((seen.predictions.argmax(-1) == seen.label_ids).mean())},
    )  # fmt: skip
    trainer.train()
    logged = [
        entry[name]
        for entry in trainer.state.log_history
        for name in ("loss", "eval_loss", "eval_right")
        if name in entry
    ]
    return torch.tensor(logged), {name: x.detach() for name, x in model.named_parameters()}


@pytest.mark.parametrize("named", [{}, {"prediction_loss_only": True}, {"label_smoothing_factor": 0.1}], ids=str)
def test_trainer_learns_the_same(named, tmp_path, losses):
    got, weights = trained(tmp_path, True, **named)
    assert len(losses) == (0 if "label_smoothing_factor" in named else 6)  # smoothing takes logits
    want, own = trained(tmp_path, False, **named)
    assert got.numel() == (6 if "prediction_loss_only" in named else 9)
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    for name, x in own.items():
        torch.testing.assert_close(weights[name], x, rtol=1e-5, atol=1e-5)


def test_fifty_steps_go_the_same_way(monkeypatch):
    want = train("llama", "eager", 50)
    made = decoder

    def patched(*names, **named):
        model = made(*names, **named)
        patch(model, loss=True)
        return model

    monkeypatch.setattr(training, "decoder", patched)
    got = train("llama", "eager", 50)
    assert want[-1] < want[0] - 0.5
    assert max(abs(a - b) for a, b in zip(got, want, strict=True)) <= 1e-3
