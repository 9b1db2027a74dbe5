"""`xeflash bench train`: what is run, that a wrong attention is caught, what its rows say."""

import json

import pytest
import torch
from xeflash.bench import environ, memory
from xeflash.bench.formats import from_csv, from_json, to_csv, to_json, to_md
from xeflash.bench.llm import models, training
from xeflash.bench.llm.generation import use_attention
from xeflash.bench.llm.training_rows import LAYOUT, TrainCell, expand, result_of, with_ratios
from xeflash.cli import main

pytest.importorskip("transformers")
integration = pytest.importorskip("xeflash.integrations.transformers")
pytestmark = pytest.mark.usefixtures("tiny_preset")

TINY = TrainCell("tiny", None, "fp32", 2, 40, checkpointing=False)
ALL = ("xeflash", "sdpa", "eager")


def options(*attentions):
    return training.Options("cpu", 2, 0, attentions)


def tiny(dtype="fp32"):
    return models.build("tiny", None, dtype, "cpu", 0).train(), torch.arange(80).reshape(2, 40) * 7 % 256


def change_our_attention(monkeypatch, change):
    right = integration.attention_function
    monkeypatch.setattr(integration, "attention_function", lambda *a, **k: (change(right(*a, **k)[0]), None))


def test_cells_of_a_model_and_dtype_stay_together():
    cells = expand(("a", "b", "a"), 2, ("fp32", "bf16"), (1, 2), (512, 512), True)
    assert [(cell.model, cell.dtype, cell.batch) for cell in cells] == [
        (model, dtype, batch) for model in "ab" for dtype in ("fp32", "bf16") for batch in (1, 2)
    ]
    assert cells[0] == TrainCell("a", 2, "fp32", 1, 512, checkpointing=True)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_all_attentions_agree(dtype, checkpointing):
    model, tokens = tiny(dtype)
    if checkpointing:
        training.enable_checkpointing(model)
    assert training.disagreements(model, tokens, ALL) == {}


@pytest.mark.parametrize(
    "change, what", [(lambda out: out * 3, "losses"), (lambda out: out.detach() + 0 * out, "gradients")]
)
def test_wrong_losses_and_gradients_are_found(change, what, monkeypatch):
    change_our_attention(monkeypatch, change)
    wrong = training.disagreements(*tiny(), ALL)
    assert list(wrong) == ["xeflash"] and f"error of {what}" in wrong["xeflash"]


def test_steps_do_all_work_and_change_no_weights():
    model, tokens = tiny()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    before = [x.detach().clone() for x in model.parameters()]
    use_attention(model, "xeflash")
    steps = training.Steps(model, optimizer, tokens)
    assert steps.step() == steps.step() and steps.seconds() > 0
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), before, strict=True))
    assert all(optimizer.state[x]["step"] == 3 and optimizer.state[x]["exp_avg"].any() for x in model.parameters())


def test_a_run_has_a_row_for_each_cell_and_attention():
    cells = expand(("tiny",), None, ("fp32",), (2,), (40, 400), False)
    results = with_ratios(list(training.run(cells, options(*ALL))))
    rows = [result.row for result in results]
    assert [(row.seq, row.attention) for row in rows] == [(seq, name) for seq in (40, 400) for name in ALL]
    for row, result in zip(rows, results, strict=True):
        assert row.status == "ok" and row.rounds == len(result.samples_ms["step"]) == 2
        assert row.tokens_per_s == pytest.approx(1e3 * 2 * row.seq / row.median_ms)
    assert rows[1].ratio == rows[4].ratio == 1
    assert rows[3].loss == pytest.approx(rows[5].loss, rel=1e-6)
    assert rows[5].peak_bytes - rows[3].peak_bytes > 2 * 2 * 4 * 400 * 400 * 4  # the probabilities of both layers
    assert from_json(to_json({}, results, LAYOUT), LAYOUT) == results
    assert [result.row for result in from_csv(to_csv({}, results, LAYOUT), LAYOUT)] == rows
    assert to_md({}, results, LAYOUT).count("| tiny |") == 6


def test_checkpointing_needs_less_memory():
    model, tokens = tiny()
    use_attention(model, "xeflash")
    steps = training.Steps(model, torch.optim.AdamW(model.parameters(), lr=0.0), tokens.repeat(1, 5))
    peaks = [(steps.step(), memory.peak_of(steps.step, "cpu"))[1]]
    training.enable_checkpointing(model)
    peaks.append(memory.peak_of(steps.step, "cpu"))
    assert peaks[1] < 0.8 * peaks[0]


def test_ratios_are_those_of_rounds():
    results = [result_of(TINY, "sdpa", [2.0, 30.0, 4.0], 0, 1.0), result_of(TINY, "xeflash", [1.0, 10.0, 4.0], 0, 1.0)]
    assert [result.row.ratio for result in with_ratios(results)] == [1.0, 2.0]
    assert with_ratios(results[1:])[0].row.ratio is None


def test_only_rows_of_the_wrong_attention_fail(monkeypatch, capsys):
    change_our_attention(monkeypatch, lambda out: out * 3)
    words = ["--model", "tiny", "--seq", "40", "--rounds", "1", "--format", "json"]
    assert main(["bench", "train", *words]) == 1
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["attention"], row["status"]) for row in rows] == [
        ("xeflash", "failed"),
        ("sdpa", "ok"),
        ("eager", "ok"),
    ]
    assert rows[0]["note"].startswith("wrong: error of losses") and rows[0]["tokens_per_s"] is None


def test_an_attention_that_a_model_does_not_have_fails_its_rows(monkeypatch):
    def use(model, name):
        if name == "sdpa":
            raise ValueError("no sdpa here\nat all")
        use_attention(model, name)

    monkeypatch.setattr(training, "use_attention", use)
    rows = [result.row for result in training.run([TINY], options("sdpa", "xeflash"))]
    assert [(row.status, row.note) for row in rows] == [("failed", "ValueError: no sdpa here"), ("ok", "")]


def test_memory_that_is_not_there_skips(monkeypatch):
    long = TrainCell("tiny", None, "fp32", 1, 500, checkpointing=False)
    monkeypatch.setattr(training, "available_memory", lambda *_: 20_000_000)
    rows = [result.row for result in training.run([long], options("xeflash", "eager"))]
    assert [row.status for row in rows] == ["ok", "skipped"] and "needs about" in rows[1].note


def test_an_error_fails_a_row_and_not_the_run(monkeypatch):
    step = training.Steps.step

    def bad(self):
        if self._model.config._attn_implementation == "sdpa":
            raise RuntimeError("no luck")
        return step(self)

    monkeypatch.setattr(training.Steps, "step", bad)
    rows = [result.row for result in training.run([TINY], options("xeflash", "sdpa"))]
    assert [row.status for row in rows] == ["ok", "failed"] and rows[1].note == "RuntimeError: no luck"


def test_the_command_writes_what_is_asked(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    file, picture = tmp_path / "out.csv", tmp_path / "out.png"
    words = ["--model", "tiny", "--seq", "16,32", "--rounds", "1", "--compare", "sdpa,xeflash", "--checkpointing"]
    assert main(["bench", "train", *words, "--output", str(file), "--plot", str(picture)]) == 0
    rows = [result.row for result in from_csv(file.read_text(), LAYOUT)]
    assert [(row.seq, row.attention, row.checkpointing) for row in rows] == [
        (seq, name, True) for seq in (16, 32) for name in ("sdpa", "xeflash")
    ]
    assert picture.stat().st_size > 10_000
    out = capsys.readouterr().out
    assert "| tokens/s | of sdpa |" in out and "learning rate is 0" in out


@pytest.mark.parametrize(
    "words, message",
    [
        (["--compare", "sdpa/static"], "argument --compare: choose from xeflash, sdpa, eager, got 'sdpa/static'"),
        (["--dtype", "fp16"], "argument --dtype: choose from fp32, bf16, got 'fp16'"),
        (["--device", "sim:bmg"], "argument --device: invalid choice: 'sim:bmg'"),
        (["--context", "512"], "unrecognized arguments: --context 512"),
        (["--no-peak"], "unrecognized arguments: --no-peak"),
    ],
)
def test_what_a_step_does_not_have_is_refused(words, message, capsys):
    with pytest.raises(SystemExit):
        main(["bench", "train", *words])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [(["--seq", "1"], "--seq must be at least 2"), (["--layers", "99"], "--layers must be at most")],
)
def test_what_a_model_cannot_have_is_refused(words, message, capsys):
    assert main(["bench", "train", "--model", "small", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_model_that_does_not_fit_is_not_built(monkeypatch):
    monkeypatch.setattr(training, "available_memory", lambda *_: 1_000_000)
    monkeypatch.setattr(training, "build", lambda *_: pytest.fail("it was built"))
    cells = expand(["tiny"], None, ["fp32"], [1], [16], False)
    results = list(training.run(cells, options("xeflash", "eager")))
    assert [result.row.status for result in results] == ["skipped"] * 2
    assert all("GB are free, of which 60% are used" in result.row.note for result in results)


def test_limits_of_cgroups_count(tmp_path):
    (tmp_path / "memory.max").write_text("1000\n")
    (tmp_path / "memory.current").write_text("400\n")
    assert 600 in environ._left_in_cgroups(tmp_path)
    (tmp_path / "memory.stat").write_text("anon 250\ninactive_file 150\n")
    assert 750 in environ._left_in_cgroups(tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    assert environ._left_in_cgroups(tmp_path) == []
    assert environ.too_large(61, 100) and not environ.too_large(60, 100) and not environ.too_large(60, None)
    assert environ.too_large(1, 0)
