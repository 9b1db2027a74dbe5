"""`xeflash bench decode`, `generate` and `train`: what is run, that a wrong attention is caught, what is told."""

import json

import pytest
import torch
from cover import few_rows
from xeflash.bench import environ, formats, memory, runner
from xeflash.bench.cases import product
from xeflash.bench.limits import Peaks
from xeflash.bench.llm import check, decode, generation, instruments, models, rows, run, training
from xeflash.bench.llm.cells import (
    Cell,
    Implementation,
    TrainCell,
    parse_implementations,
    with_cache_dtypes,
    with_linears,
)
from xeflash.bench.llm.generation import use_attention
from xeflash.bench.llm.linears import Models, prepared
from xeflash.cli import main

pytest.importorskip("transformers")
integration = pytest.importorskip("xeflash.integrations.transformers")
pytestmark = pytest.mark.usefixtures("tiny_preset")

TINY = Cell("tiny", None, "fp32", 2, 1, 40, 5)
OURS, TORCH, EAGER = parse_implementations("xeflash/xe,sdpa/dynamic,eager/dynamic")
STEPS = TrainCell("tiny", None, "fp32", 2, 40, checkpointing=False)
ALL = ("xeflash", "sdpa", "eager")
KINDS = {"decode": (decode.Decoding, TINY, (OURS, TORCH)), "train": (training.Training, STEPS, ALL)}


def build(dtype="fp32"):
    return models.build("tiny", None, dtype, "cpu", 0)


def prompt(cell=TINY):
    return generation.prompt_of(cell, 256, "cpu", 0)


def trained(dtype="fp32"):
    return build(dtype).train(), torch.arange(80).reshape(2, 40) * 7 % 256


def measure(kind, cells, *ways, rounds=2):
    return list(run.run(kind, cells, run.Options("cpu", rounds, 0, ways)))


def change_our_attention(patch, change):
    right = integration.attention_function
    patch.setattr(integration, "attention_function", lambda *a, **k: (change(right(*a, **k)[0]), None))


def test_implementations_are_parsed_and_refused():
    found = parse_implementations("xeflash,sdpa,eager,sdpa/static,sdpa")
    assert found == (OURS, TORCH, EAGER, Implementation("sdpa", "static"))
    for wrong in ("flash", "sdpa/xe", "eager/paged"):
        with pytest.raises(ValueError, match="one of|is for"):
            parse_implementations(wrong)


def test_cells_of_a_model_and_dtype_stay_together():
    choices = {"layers": 2, "dtype": ("fp32", "bf16"), "batch": (1, 2), "seq": (512, 512), "checkpointing": True}
    cells = product(TrainCell, model=("a", "b", "a"), **choices)
    assert [(cell.model, cell.dtype, cell.batch) for cell in cells] == [
        (model, dtype, batch) for model in "ab" for dtype in ("fp32", "bf16") for batch in (1, 2)
    ]
    assert cells[0] == TrainCell("a", 2, "fp32", 1, 512, checkpointing=True)


@pytest.mark.parametrize(
    "name, context, keys, heads, dim",
    [
        ("llama-3-8b", 1000, 32 * 1000, 8, 128),
        ("mistral-7b", 8192, 32 * 4096, 8, 128),
        ("gemma-2-9b", 8192, 21 * (8192 + 4096), 8, 256),
        ("gpt-oss-20b", 1000, 12 * (1000 + 128), 8, 64),
        ("qwen2.5-7b", 8192, 28 * 8192, 4, 128),
    ],
)
def test_kv_bytes_are_those_that_a_token_sees(name, context, keys, heads, dim):
    config = models.config_of(name, None)
    assert models.kv_bytes(config, context, "bf16") == 2 * 2 * keys * heads * dim
    assert models.kv_bytes(config, context, "int8") == 2 * keys * heads * (dim + 4)
    assert models.kv_bytes(config, context, "k8v4") == keys * heads * (dim + 4 + dim // 2 + dim // 32)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("beams", [1, 4])
def test_all_implementations_agree(dtype, beams):
    cell = Cell("tiny", None, dtype, 2, beams, 40, 5)
    every = parse_implementations("xeflash,xeflash/dynamic,xeflash/static,sdpa,sdpa/static,eager")
    assert check.disagreement(Models(build(dtype)), cell, every, prompt()) == ""


@pytest.mark.parametrize(
    ("dtype", "kept"),
    few_rows([("fp32", "fp8"), ("fp32", "int8"), ("bf16", "k8v4")], ("fp32", "int8")),
)
def test_caches_of_fewer_bits_agree_with_eager_attention_on_them(dtype, kept, monkeypatch):
    cell = Cell("tiny", None, dtype, 2, 1, 13, 5)
    every = with_cache_dtypes((TORCH, OURS), ("same", kept))
    assert list(map(str, every)) == ["sdpa/dynamic", "xeflash/xe", f"xeflash/xe:{kept}"]
    model = build(dtype)
    layer = generation.make_cache(cell, every[-1], model.config).layers[0]
    assert layer._kept_dtype == (torch.float8_e4m3fn if kept == "fp8" else torch.int8)
    with monkeypatch.context() as patch:
        change_our_attention(patch, lambda out: out * 3)
        assert f"xeflash/xe:{kept}: error of logits" in check.disagreement(
            Models(model), cell, every[::2], prompt(cell)
        )
    assert check.disagreement(Models(model), cell, every, prompt(cell)) == ""


@pytest.mark.parametrize("weights", ["same", "int8", "int4", "int4+head"])
def test_linear_layers_by_xeflash_have_the_same_weights(weights):
    models = prepared(build(), weights, patched=True)
    both = with_linears((TORCH,), ("torch", "xeflash"))
    assert list(map(str, both)) == ["sdpa/dynamic", "sdpa/dynamic+linear"]
    assert check.disagreement(models, TINY, both, prompt()) == ""
    layers = dict(models.xeflash.named_modules())
    packed = {name for name, x in layers.items() if getattr(x.__dict__.get("_xeflash"), "weight", None) is not None}
    linear = {name for name, x in models.torch.named_modules() if type(x) is torch.nn.Linear}
    assert packed == (set() if weights == "same" else linear if "head" in weights else linear - {"lm_head"})
    assert all("_xeflash" in layers[name].__dict__ for name in linear)
    for ours, theirs in zip(models.xeflash.parameters(), models.torch.parameters(), strict=True):
        assert ours is theirs
    if packed:  # linear reads what is packed
        models.xeflash.get_submodule(min(packed - {"lm_head"})).__dict__["_xeflash"].named["scales"] *= -8
        assert "sdpa/dynamic+linear: error of logits" in check.disagreement(models, TINY, both, prompt())


def test_a_wrong_attention_is_found(monkeypatch):
    model = build()
    with monkeypatch.context() as patch:
        change_our_attention(patch, lambda out: out * 3)
        assert "xeflash/xe: error of logits" in check.disagreement(Models(model), TINY, (TORCH, OURS), prompt())
    assert check.disagreement(Models(model), TINY, (TORCH, OURS), prompt()) == ""


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_all_attentions_agree(dtype, checkpointing):
    model, tokens = trained(dtype)
    if checkpointing:
        training.enable_checkpointing(model)
    assert training.disagreements(model, tokens, ALL) == {}


@pytest.mark.parametrize(
    "change, what", [(lambda out: out * 3, "losses"), (lambda out: out.detach() + 0 * out, "gradients")]
)
def test_wrong_losses_and_gradients_are_found(change, what, monkeypatch):
    change_our_attention(monkeypatch, change)
    wrong = training.disagreements(*trained(), ALL)
    assert list(wrong) == ["xeflash"] and f"error of {what}" in wrong["xeflash"]


def test_what_a_generation_gives():
    model = build()
    generation.use(model, OURS)
    got = generation.generate(model, TINY, prompt(), generation.make_cache(TINY, OURS, model.config))
    assert got.tokens.shape == (2, 5) and len(got.steps) == 4
    assert 0 < got.first < got.first + sum(got.steps) <= got.total


@pytest.mark.parametrize("implementation", [OURS, TORCH, EAGER], ids=str)
def test_attention_is_timed_and_left_as_it_was(implementation):
    model = build()
    generation.use(model, implementation)
    cache = generation.make_cache(TINY, implementation, model.config)
    with instruments.attention_timed(model, cache, "cpu") as attention:
        got = generation.generate(model, TINY, prompt(), cache)
    assert 0 < attention.seconds < sum(got.steps)
    before = attention.seconds
    generation.generate(model, TINY, prompt(), generation.make_cache(TINY, implementation, model.config))
    assert attention.seconds == before


def test_copies_are_those_of_the_cache():
    """Beam search copies all of DynamicCache, twice a token; of XeCache only a table."""
    cell = Cell("tiny", None, "fp32", 1, 4, 40, 5)
    model = build()
    copied = {}
    for implementation in (OURS, TORCH):
        generation.use(model, implementation)
        copied[implementation] = decode.shares(model, cell, implementation, prompt(cell)).copied_bytes
    cache = 4 * models.kv_bytes(model.config, cell.context, "fp32")
    assert 2 * cache < copied[TORCH] < 2.5 * cache
    assert copied[OURS] < 0.1 * cache


def test_steps_do_all_work_and_change_no_weights():
    model, tokens = trained()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    before = [x.detach().clone() for x in model.parameters()]
    use_attention(model, "xeflash")
    steps = training.Steps(model, optimizer, tokens)
    assert steps.step() == steps.step() and steps.seconds() > 0
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), before, strict=True))
    assert all(optimizer.state[x]["step"] == 3 and optimizer.state[x]["exp_avg"].any() for x in model.parameters())


def test_checkpointing_needs_less_memory():
    model, tokens = trained()
    use_attention(model, "xeflash")
    steps = training.Steps(model, torch.optim.AdamW(model.parameters(), lr=0.0), tokens.repeat(1, 5))
    peaks = [(steps.step(), memory.peak_of(steps.step, "cpu"))[1]]
    training.enable_checkpointing(model)
    peaks.append(memory.peak_of(steps.step, "cpu"))
    assert peaks[1] < 0.8 * peaks[0]


def read_back(results, layout):
    assert formats.from_json(formats.to_json({}, results, layout), layout) == results
    found = formats.from_csv(formats.to_csv({}, results, layout), layout)
    assert [result.row for result in found] == [result.row for result in results]
    assert sum(text in formats.to_md({}, results, layout) for text in (f"| {x.row.way} | " for x in results)) == len(
        results
    )


def test_a_run_has_a_row_for_each_cell_and_implementation():
    cells = [TINY, Cell("tiny", None, "fp32", 2, 1, 60, 5)]
    results = rows.beside_sdpa(measure(decode.Decoding, cells, OURS, TORCH), Peaks({}, {"memory": 1000.0}))
    got = [result.row for result in results]
    assert [(row.context, row.way) for row in got] == [
        (context, name) for context in (40, 60) for name in ("xeflash/xe", "sdpa/dynamic")
    ]
    for row, result in zip(got, results, strict=True):
        assert row.status == "ok" and row.rounds == 2 and row.tokens_per_s > 0 and 0 < row.attention_percent < 100
        assert row.kv_bytes == 2 * 2 * 2 * 2 * row.context * 64 * 4
        assert row.bound_by == "memory" and row.percent_of_peak == pytest.approx(row.kv_gbytes_per_s / 10)
        assert len(result.samples_ms[row.way]) == 2 * 4
    assert got[1].ratio == got[3].ratio == 1
    read_back(results, rows.DECODE)


def test_a_run_has_a_row_for_each_cell_and_attention():
    cells = [STEPS, TrainCell("tiny", None, "fp32", 2, 400, checkpointing=False)]
    results = rows.beside_sdpa(measure(training.Training, cells, *ALL), Peaks())
    got = [result.row for result in results]
    assert [(row.seq, row.way) for row in got] == [(seq, name) for seq in (40, 400) for name in ALL]
    for row, result in zip(got, results, strict=True):
        assert row.status == "ok" and row.rounds == len(result.samples_ms[row.way]) == 2
        assert row.tokens_per_s == pytest.approx(1e3 * 2 * row.seq / row.median_ms)
    assert got[1].ratio == got[4].ratio == 1
    assert got[3].loss == pytest.approx(got[5].loss, rel=1e-6)
    assert got[5].peak_bytes - got[3].peak_bytes > 2 * 2 * 4 * 400 * 400 * 4  # the probabilities of both layers
    read_back(results, rows.TRAIN)


def test_ratios_are_those_of_rounds():
    times = {"sdpa": [2.0, 30.0, 4.0], "xeflash": [1.0, 10.0, 4.0]}
    results = [rows.trained(rows.row_of(STEPS, way), steps, 0, 1.0) for way, steps in times.items()]
    found = [result.row for result in rows.beside_sdpa(results, Peaks())]
    assert [(row.ratio, row.ratio_low, row.ratio_high) for row in found] == [(1.0, 1.0, 1.0), (2.0, 1.0, 3.0)]
    assert rows.beside_sdpa(results[1:], Peaks())[0].row.ratio is None


def generations(way, share, *rounds):
    """The result of rounds whose tokens took these milliseconds, with this share of it in attention."""
    steps = [
        generation.Generation(torch.empty(0), 1.0, tuple(1e-3 * ms for ms in times), 2.0, None) for times in rounds
    ]
    return rows.generated(rows.row_of(TINY, way), steps, rows.Shares(share, 1.0, 0), 1)


def test_ratios_of_tokens_are_those_of_the_medians_of_rounds():
    results = [
        generations("sdpa/dynamic", 0.1, [1, 2, 9], [8, 8, 8]),
        generations("xeflash/xe", 0.1, [1, 1, 1], [2, 9, 2]),
    ]
    ours = rows.beside_sdpa(results, Peaks())[1].row
    assert (ours.ratio, ours.ratio_low, ours.ratio_high) == pytest.approx((3.0, 2.0, 4.0))


@pytest.mark.parametrize(
    "rest, attention, busy", [(11, 10, False), (15, 2, False), (15, 8, True), (15, 12, True), (5, 15, False)]
)
def test_a_difference_that_attention_has_not_made_is_marked(rest, attention, busy):
    ms = rest + attention
    ways = {"sdpa/dynamic": (20, 0.5), "xeflash/xe": (ms, attention / ms), "xeflash/xe+linear": (1, 0.5)}
    results = rows.beside_sdpa([generations(way, share, [ms]) for way, (ms, share) in ways.items()], Peaks())
    differs = 100 * (max(rest, 10) / min(rest, 10) - 1)
    assert [result.row.rest_differs_percent for result in results] == pytest.approx([differs, differs, None])
    assert [result.row.busy for result in results] == [busy, busy, False]
    for layout in (rows.DECODE, rows.GENERATE):
        text = formats.to_md({}, results, layout, wide=False)
        assert text.count(" ! |") == 2 * busy
        assert ("- ! the rest of a step, which these ways share, differs by 50 %, more than attention" in text) == busy


@pytest.mark.parametrize("what", KINDS)
def test_memory_that_is_not_there_skips(what, monkeypatch):
    monkeypatch.setattr(run, "build", lambda *_: pytest.fail("it was built"))
    monkeypatch.setattr(run, "available_memory", lambda *_: 1_000_000)
    kind, cell, ways = KINDS[what]
    found = [result.row for result in measure(kind, [cell], *ways)]
    assert [(row.way, row.status) for row in found] == [(str(way), "skipped") for way in ways]
    assert all("GB are free, of which 60% are used" in row.note for row in found)


@pytest.mark.parametrize(
    ("kind", "cell", "ways", "free"),
    [
        (decode.Decoding, TINY, (OURS, EAGER), 900_000),
        (training.Training, TrainCell("tiny", None, "fp32", 1, 500, False), ("xeflash", "eager"), 20_000_000),
    ],
    ids=lambda x: "",
)
def test_only_the_way_that_needs_too_much_is_left_out(kind, cell, ways, free, monkeypatch):
    monkeypatch.setattr(runner, "available_memory", lambda *_: free)
    found = [result.row for result in measure(kind, [cell], *ways, rounds=1)]
    assert [row.status for row in found] == ["ok", "skipped"] and "needs about" in found[1].note


@pytest.mark.parametrize("place", ["begin", "sample"])
@pytest.mark.parametrize("what", KINDS)
def test_an_error_fails_a_row_and_not_the_run(what, place, monkeypatch):
    kind, cell, ways = KINDS[what]
    good = getattr(kind, place)

    def bad(self, cell, inputs, way):
        if str(way).startswith("sdpa"):
            raise RuntimeError("no luck\nat all")
        return good(self, cell, inputs, way)

    monkeypatch.setattr(kind, place, bad)
    found = {result.row.way: result.row for result in measure(kind, [cell], *ways)}
    wrong = found.pop("sdpa/dynamic" if what == "decode" else "sdpa")
    assert (wrong.status, wrong.note) == ("failed", "RuntimeError: no luck")
    assert {row.status for row in found.values()} == {"ok"}


def test_only_rows_of_the_wrong_attention_fail(monkeypatch, capsys):
    change_our_attention(monkeypatch, lambda out: out * 3)
    words = ["--model", "tiny", "--seq", "40", "--rounds", "1", "--format", "json"]
    assert main(["bench", "train", *words]) == 1
    found = json.loads(capsys.readouterr().out)["rows"]
    assert [(row["way"], row["status"]) for row in found] == [("xeflash", "failed"), ("sdpa", "ok"), ("eager", "ok")]
    assert found[0]["note"].startswith("wrong: error of losses") and found[0]["tokens_per_s"] is None


def test_the_commands_write_what_is_asked(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    words = ["--model", "tiny", "--context", "16,32", "--new-tokens", "3", "--rounds", "1", "--no-peak"]
    file, picture = tmp_path / "out.json", tmp_path / "out.png"
    assert main(["bench", "decode", *words, "--output", str(file), "--plot", str(picture)]) == 0
    found = json.loads(file.read_text())["rows"]
    assert [row["way"] for row in found][:3] == ["xeflash/xe", "sdpa/dynamic", "eager/dynamic"]
    assert picture.stat().st_size > 10_000
    assert "| TPOT ms |" in capsys.readouterr().out
    linear = ["--compare", "sdpa", "--linear", "torch,xeflash", "--weights", "int4", "--output", str(file)]
    assert main(["bench", "decode", *words, *linear]) == 0
    found = [(row["way"], row["weights"]) for row in json.loads(file.read_text())["rows"]]
    assert found == [(name, "int4") for _ in range(2) for name in ("sdpa/dynamic", "sdpa/dynamic+linear")]
    assert main(["bench", "decode", *words, *linear, "--lm-head", "fused"]) == 0
    assert {row["weights"] for row in json.loads(file.read_text())["rows"]} == {"int4+head"}
    assert main(["bench", "decode", *words, "--lm-head", "fused"]) == 2
    assert "--lm-head fused needs --weights int8 or int4" in capsys.readouterr().err
    assert main(["bench", "generate", *words, "--compare", "sdpa"]) == 0
    assert "new tokens/s" in capsys.readouterr().out


def test_the_command_of_training_writes_what_is_asked(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    file, picture = tmp_path / "out.csv", tmp_path / "out.png"
    words = ["--model", "tiny", "--seq", "16,32", "--rounds", "1", "--compare", "sdpa,xeflash", "--checkpointing"]
    assert main(["bench", "train", *words, "--output", str(file), "--plot", str(picture)]) == 0
    found = [result.row for result in formats.from_csv(file.read_text(), rows.TRAIN)]
    assert [(row.seq, row.way, row.checkpointing) for row in found] == [
        (seq, name, True) for seq in (16, 32) for name in ("sdpa", "xeflash")
    ]
    assert picture.stat().st_size > 10_000
    out = capsys.readouterr().out
    assert "| tokens/s | ratio per round |" in out and "learning rate" not in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["decode", "--model", "gpt-5"], "choose from small"),
        (["decode", "--compare", "sdpa/xe"], "the cache xe is for the attention xeflash, got 'sdpa/xe'"),
        (["decode", "--context", "0"], "a positive whole number"),
        (["decode", "--device", "sim:bmg"], "argument --device: invalid choice: 'sim:bmg'"),
        (["train", "--compare", "sdpa/static"], "--compare: choose from xeflash, sdpa, eager, got 'sdpa/static'"),
        (["train", "--dtype", "fp16"], "argument --dtype: choose from fp32, bf16, got 'fp16'"),
        (["train", "--context", "512"], "unrecognized arguments: --context 512"),
        (["train", "--no-peak"], "unrecognized arguments: --no-peak"),
    ],
)
def test_what_the_command_line_does_not_have_is_refused(words, message, capsys):
    with pytest.raises(SystemExit):
        main(["bench", *words])
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--seq", "1"], "--seq must be at least 2"),
        (["train", "--layers", "99"], "--layers must be at most"),
        (["decode", "--new-tokens", "1"], "--new-tokens must be at least 2"),
        (
            ["decode", "--dtype", "bf16,fp32", "--cache-dtype", "k8v4"],
            "--cache-dtype k8v4 needs --dtype of bf16 or fp16",
        ),
        (["decode", "--compare", "sdpa", "--cache-dtype", "int8"], "--cache-dtype must be same without the cache xe"),
    ],
)
def test_what_a_model_cannot_have_is_refused(words, message, capsys):
    assert main(["bench", *words]) == 2
    assert message in capsys.readouterr().err


def test_peak_memory_is_that_of_the_call():
    peak = memory.PeakMemory("cpu")
    torch.ones(50_000_000).sum()
    assert 190e6 < peak.bytes() < 260e6


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
