"""`xeflash bench decode` and `generate`: what is run, that a wrong attention is caught, what is counted."""

import json

import pytest
import torch
from xeflash.bench.formats import Layout, from_csv, from_json, to_csv, to_json, to_md
from xeflash.bench.limits import Peaks
from xeflash.bench.llm import check, columns, generation, instruments, models, rows, run
from xeflash.bench.llm.cells import Cell, Implementation, expand, parse_implementations, with_linears
from xeflash.bench.llm.linears import Models, prepared
from xeflash.cli import main

pytest.importorskip("transformers")
integration = pytest.importorskip("xeflash.integrations.transformers")

TINY = Cell("tiny", None, "fp32", 2, 1, 40, 5)
OURS, TORCH, EAGER = (Implementation(*words.split("/")) for words in ("xeflash/xe", "sdpa/dynamic", "eager/dynamic"))
LAYOUT = Layout(rows.LlmRow, columns.TABLES)


pytestmark = pytest.mark.usefixtures("tiny_preset")


def build(dtype="fp32"):
    return models.build("tiny", None, dtype, "cpu", 0)


def prompt(cell=TINY):
    return generation.prompt_of(cell, 256, "cpu", 0)


def test_implementations_are_parsed_and_refused():
    assert parse_implementations("xeflash,sdpa,eager,sdpa/static,sdpa") == (
        OURS,
        TORCH,
        EAGER,
        Implementation("sdpa", "static"),
    )
    for wrong in ("flash", "sdpa/xe", "eager/paged"):
        with pytest.raises(ValueError, match="one of|is for"):
            parse_implementations(wrong)


def test_cells_of_a_model_and_dtype_stay_together():
    cells = expand(("a", "b"), 2, ("fp32", "bf16"), (1, 2), (1, 4), (512,), 8)
    kinds = [(cell.model, cell.dtype) for cell in cells]
    assert len(cells) == len(set(cells)) == 16
    assert kinds == sorted(kinds, key=lambda kind: (kind[0], ("fp32", "bf16").index(kind[1])))


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
    assert models.kv_bytes(models.config_of(name, None), context, "bf16") == 2 * 2 * keys * heads * dim


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("beams", [1, 4])
def test_all_implementations_agree(dtype, beams):
    cell = Cell("tiny", None, dtype, 2, beams, 40, 5)
    every = parse_implementations("xeflash,xeflash/dynamic,xeflash/static,sdpa,sdpa/static,eager")
    assert check.disagreement(Models(build(dtype)), cell, every, prompt()) == ""


@pytest.mark.parametrize("weights", ["same", "int8", "int4", "int4+head"])
def test_linear_layers_by_xeflash_have_the_same_weights(weights):
    models = prepared(build(), weights, patched=True)
    both = with_linears((TORCH,), ("torch", "xeflash"))
    assert [x.name for x in both] == ["sdpa/dynamic", "sdpa/dynamic+linear"]
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
    model, right = build(), integration.attention_function
    with monkeypatch.context() as patch:
        patch.setattr(integration, "attention_function", lambda *a, **k: (right(*a, **k)[0] * 3, None))
        assert "xeflash/xe: error of logits" in check.disagreement(Models(model), TINY, (TORCH, OURS), prompt())
    assert check.disagreement(Models(model), TINY, (TORCH, OURS), prompt()) == ""


def test_what_a_generation_gives():
    model = build()
    generation.use(model, OURS)
    got = generation.generate(model, TINY, prompt(), generation.make_cache(TINY, "xe", model.config))
    assert got.tokens.shape == (2, 5) and len(got.steps) == 4
    assert 0 < got.first < got.first + sum(got.steps) <= got.total


@pytest.mark.parametrize("implementation", [OURS, TORCH, EAGER], ids=lambda implementation: implementation.name)
def test_attention_is_timed_and_left_as_it_was(implementation):
    model = build()
    generation.use(model, implementation)
    cache = generation.make_cache(TINY, implementation.cache, model.config)
    with instruments.attention_timed(model, cache, "cpu") as attention:
        got = generation.generate(model, TINY, prompt(), cache)
    assert 0 < attention.seconds < sum(got.steps)
    before = attention.seconds
    generation.generate(model, TINY, prompt(), generation.make_cache(TINY, implementation.cache, model.config))
    assert attention.seconds == before


def test_copies_are_those_of_the_cache():
    """Beam search copies all of DynamicCache, twice a token; of XeCache only a table."""
    cell = Cell("tiny", None, "fp32", 1, 4, 40, 5)
    model = build()
    copied = {}
    for implementation in (OURS, TORCH):
        generation.use(model, implementation)
        copied[implementation] = run._shares(model, cell, implementation, prompt(cell)).copied_bytes
    cache = 4 * models.kv_bytes(model.config, cell.context, "fp32")
    assert 2 * cache < copied[TORCH] < 2.5 * cache
    assert copied[OURS] < 0.1 * cache


def results():
    cells = [TINY, Cell("tiny", None, "fp32", 2, 1, 60, 5)]
    options = run.Options("cpu", 2, 0, (OURS, TORCH))
    return rows.with_ratios(list(run.run(cells, options)), Peaks({}, {"memory": 1000.0}))


def test_a_run_has_a_row_for_each_cell_and_implementation():
    got = [result.row for result in results()]
    assert [(row.context, row.implementation) for row in got] == [
        (context, name) for context in (40, 60) for name in ("xeflash/xe", "sdpa/dynamic")
    ]
    for row in got:
        assert row.status == "ok" and row.rounds == 2 and row.tokens_per_s > 0 and 0 < row.attention_percent < 100
        assert row.kv_bytes == 2 * 2 * 2 * 2 * row.context * 64 * 4
        assert row.bound_by == "memory" and row.percent_of_peak == pytest.approx(row.kv_gbytes_per_s / 10)
    assert got[1].ratio == got[3].ratio == 1


def test_results_are_read_back():
    some = results()
    assert from_json(to_json({}, some, LAYOUT), LAYOUT) == some
    assert [result.row for result in from_csv(to_csv({}, some, LAYOUT), LAYOUT)] == [result.row for result in some]
    assert to_md({}, some, LAYOUT).count("| tiny |") == 4


def test_memory_that_is_not_there_skips(monkeypatch):
    monkeypatch.setattr(run, "available_memory", lambda *_: 1000)
    (only,) = run.run([TINY], run.Options("cpu", 1, 0, (EAGER,)))
    assert only.row.status == "skipped" and "needs about" in only.row.note


def test_an_error_fails_a_row_and_not_the_run(monkeypatch):
    good = run.generate

    def bad(model, cell, prompt, cache):
        if model.config._attn_implementation == "sdpa":
            raise RuntimeError("no luck")
        return good(model, cell, prompt, cache)

    monkeypatch.setattr(run, "generate", bad)
    got = [result.row for result in run.run([TINY], run.Options("cpu", 1, 0, (OURS, TORCH)))]
    assert [row.status for row in got] == ["ok", "failed"] and got[1].note == "RuntimeError: no luck"


def test_the_commands_write_what_is_asked(tmp_path, capsys):
    words = ["--model", "tiny", "--context", "16,32", "--new-tokens", "3", "--rounds", "1", "--no-peak"]
    file, picture = tmp_path / "out.json", tmp_path / "out.png"
    assert main(["bench", "decode", *words, "--output", str(file), "--plot", str(picture)]) == 0
    assert [row["implementation"] for row in json.loads(file.read_text())["rows"]][:3] == [
        "xeflash/xe", "sdpa/dynamic", "eager/dynamic",
    ]  # fmt: skip
    assert picture.stat().st_size > 10_000
    assert "TPOT ms: median" in capsys.readouterr().out
    linear = ["--compare", "sdpa", "--linear", "torch,xeflash", "--weights", "int4", "--output", str(file)]
    assert main(["bench", "decode", *words, *linear]) == 0
    found = [(row["implementation"], row["weights"]) for row in json.loads(file.read_text())["rows"]]
    assert found == [(name, "int4") for _ in range(2) for name in ("sdpa/dynamic", "sdpa/dynamic+linear")]
    assert main(["bench", "decode", *words, *linear, "--lm-head", "fused"]) == 0
    assert {row["weights"] for row in json.loads(file.read_text())["rows"]} == {"int4+head"}
    assert main(["bench", "decode", *words, "--lm-head", "fused"]) == 2
    assert "--lm-head fused needs --weights int8 or int4" in capsys.readouterr().err
    assert main(["bench", "generate", *words, "--compare", "sdpa"]) == 0
    assert "new tokens/s" in capsys.readouterr().out


def test_models_and_lists_are_checked_by_the_command_line(capsys):
    for words in (["--model", "gpt-5"], ["--compare", "sdpa/xe"], ["--context", "0"]):
        with pytest.raises(SystemExit):
            main(["bench", "decode", *words])
    assert "choose from small" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["--compare=sdpa", "--rounds=1", "--new-tokens=4", "--linear=xeflash"])
def test_what_a_simulated_gpu_cannot_use_is_refused(option, capsys):
    assert main(["bench", "decode", "--device", "sim:bmg", option]) == 2
    assert f"bench: {option.split('=')[0]} must be left out with --device sim:bmg" in capsys.readouterr().err


def test_peak_memory_is_that_of_the_call():
    memory = generation.PeakMemory("cpu")
    torch.ones(50_000_000).sum()
    assert 190e6 < memory.bytes() < 260e6
