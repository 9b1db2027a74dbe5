"""`xeflash bench linear`: which layers, that wrong results are caught, that torch's forms compute the same."""

import json
from itertools import product

import pytest
import torch
import xeflash
from cover import few_rows
from xeflash.bench import measure
from xeflash.bench.formats import from_csv, from_json, to_csv, to_json
from xeflash.bench.limits import Peaks, instruction
from xeflash.bench.linear import cases, forms, rows, run, weights
from xeflash.bench.linear.cases import Case
from xeflash.cli import main

OPTIONS = run.Options(rounds=2, group=32)
KINDS = ("same", "int8", "int4")


@pytest.fixture(autouse=True)
def few_copies_of_weights(small_work, monkeypatch):
    """Copies beyond a cache of a server are gigabytes."""
    monkeypatch.setattr(forms, "last_level_cache", lambda: 1 << 16)


def case(kind, dtype="fp32", rows=3):
    return Case("-", "-", 64, 96, dtype, kind, rows)


def test_layers_of_a_model_are_those_of_one_decoder_layer():
    sizes = {layer.layer: (layer.outputs, layer.inputs) for layer in cases.layers_of("llama-3-8b")}
    assert sizes == {"q+o": (4096, 4096), "k+v": (1024, 4096), "gate+up": (14336, 4096), "down": (4096, 14336)}
    assert {"q": (4096, 3584), "o": (3584, 4096)}.items() <= {
        layer.layer: (layer.outputs, layer.inputs) for layer in cases.layers_of("gemma-2-9b")
    }.items()
    assert "gpt-oss-20b" not in cases.MODELS  # most of its weights are experts


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("group", [32, 128])
def test_quantised_weights_are_the_nearest(kind, group):
    weight = torch.randn(5, 200, generator=torch.Generator().manual_seed(0)).bfloat16()
    quantised = weights.quantise(weight, kind, group)
    steps = quantised.scales.float().repeat_interleave(group, 1)[:, :200]
    assert ((quantised.numbers().float() - weight.float()).abs() <= steps / 2).all()
    x = torch.eye(200)
    arguments = {name: v.float() if name == "scales" else v for name, v in quantised.arguments().items()}
    assert torch.equal(xeflash.linear(x, **arguments).T, quantised.numbers().float())


@pytest.mark.parametrize(
    ("kind", "dtype"), few_rows(product(KINDS, ("fp32", "bf16")), *product(KINDS, ("fp32",)), ("same", "bf16"))
)
def test_forms_of_torch_compute_the_same(kind, dtype):
    inputs = forms.make_inputs(case(kind, dtype), 32, "cpu", 0)
    found = forms.torch_forms(case(kind, dtype), inputs, 32, compiled=False)
    assert "F.linear" in found
    for name, form in found.items():
        off = 0.05 if name == "int8pack" or dtype == "bf16" else 1e-4  # its weights are rounded by scales of its own
        torch.testing.assert_close(form(), forms.our_form(inputs)(), atol=off, rtol=off)


def test_weights_are_copies_beyond_the_cache(monkeypatch):
    monkeypatch.setattr(forms, "last_level_cache", lambda: 1000)
    seen = []
    form = forms.in_turns(lambda weight: seen.append(weight.data_ptr()), {"weight": torch.ones(300)})
    for _ in range(8):
        form()
    assert len(set(seen[:4])) == 4 and seen[:4] == seen[4:]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_read_back_and_wrong_results_fail(kind, monkeypatch):
    result = run.run_case(case(kind), OPTIONS)
    row = result.row
    assert row.status == "ok" and row.rounds == 2 and row.gbytes_per_s > 0 and row.plain_ratio > 0, row.note
    scales = 0 if kind == "same" else 64 * 3 * 4
    assert row.bytes == scales + {"same": 64 * 96 * 4, "int8": 64 * 96, "int4": 64 * 64}[kind]
    assert from_json(to_json({}, [result], rows.LAYOUT), rows.LAYOUT) == [result]
    assert from_csv(to_csv({}, [result], rows.LAYOUT), rows.LAYOUT)[0].row == row
    fast = Peaks({}, {"memory": 2000.0, "L3": 4000.0}, {}, {"L3": row.bytes + 1})
    held = rows.with_peaks([result], [fast])[0].row
    assert held.bound_by == "memory"  # though one copy of the weight fits in the cache
    assert held.percent_of_peak == pytest.approx(row.gbytes_per_s / 20)
    slow = Peaks({instruction(row.arch, row.dtype): 1e-3}, {"memory": 2000.0})
    assert rows.with_peaks([result], [slow])[0].row.bound_by == "arithmetic"
    right = xeflash.linear
    for change in (lambda x: x * 1.05, lambda x: x + float("nan"), lambda x: x[:, 1:]):
        monkeypatch.setattr(xeflash, "linear", lambda x, change=change, **more: change(right(x, **more)))
        assert run.run_case(case(kind), OPTIONS).row.status == "failed"


def test_memory_that_is_not_there_skips(monkeypatch):
    monkeypatch.setattr(measure, "available_memory", lambda *_: 1000)
    row = run.run_case(case("int4"), OPTIONS).row
    assert row.status == "skipped" and "needs about" in row.note


def test_the_command_writes_what_is_asked(tmp_path, capsys, monkeypatch):
    words = ["--outputs", "64", "--inputs", "96", "--rows", "1,3", "--rounds", "1", "--no-peak", "--group", "32"]
    words += ["--dtype", "fp32"]
    file, picture = tmp_path / "out.json", tmp_path / "out.png"
    assert main(["bench", "linear", *words, "--output", str(file), "--plot", str(picture)]) == 0
    found = json.loads(file.read_text())["rows"]
    assert [(row["weights"], row["rows"]) for row in found] == [(kind, n) for kind in KINDS for n in (1, 3)]
    assert picture.stat().st_size > 10_000
    assert "of F.linear" in capsys.readouterr().out
    assert main(["bench", "linear", *words, "--weights", "int4", "--compare", "none", "--format", "csv"]) == 0
    assert "int4pack" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--outputs", "64"], "--outputs and --inputs must be as many, got 1 and 0"),
        (["--outputs", "64", "--inputs", "64", "--model", "small"], "--model must be left out with --outputs"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(words, text, capsys):
    assert main(["bench", "linear", *words]) == 2
    assert text in capsys.readouterr().err
