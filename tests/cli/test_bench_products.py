"""`xeflash bench linear`, `lm-head` and `matmul-softmax`: cases, what is measured, and that wrong results fail."""

import json
from itertools import product

import pytest
import torch
import xeflash
from cover import few_rows
from xeflash.bench import formats, lm_head, matmul_softmax, runner
from xeflash.bench.cases import HEAD_OPERATIONS
from xeflash.bench.limits import Peaks, instruction
from xeflash.bench.linear import benchmark as linear
from xeflash.bench.linear import cases, forms, weights
from xeflash.bench.linear.cases import WEIGHTS
from xeflash.bench.rows import with_peaks
from xeflash.bench.runner import Options
from xeflash.cli import main

LINEAR, HEAD, SOFTMAX = (module.BENCHMARK for module in (linear, lm_head, matmul_softmax))
OPTIONS = Options(rounds=2)


@pytest.fixture(autouse=True)
def quick(small_work, monkeypatch):
    """Inductor would take seconds, and copies of weights beyond a cache of a server are gigabytes."""
    monkeypatch.setattr(torch, "compile", lambda f: f)
    monkeypatch.setattr(forms, "last_level_cache", lambda: 1 << 16)


def layer(kind, dtype="fp32", rows=3):
    return cases.Case("-", "-", 64, 96, dtype, kind, rows, group=32)


def head(operation, kind="same", dtype="fp32"):
    return lm_head.HeadCase(operation, "-", 300, 128, dtype, kind, 5)


SMALL = matmul_softmax.SoftmaxCase("fp32", 8, 16, 24, 3)


def read_back(benchmark, result):
    """Checks that all formats keep a row."""
    for name, read in formats.READERS.items():
        written = formats.WRITERS[name](benchmark.header(OPTIONS, [result]), [result], benchmark.layout)
        assert read(written, benchmark.layout)[0].row == result.row


def test_layers_of_a_model_are_those_of_one_decoder_layer():
    sizes = {layer.layer: (layer.outputs, layer.inputs) for layer in cases.layers_of("llama-3-8b")}
    assert sizes == {"q+o": (4096, 4096), "k+v": (1024, 4096), "gate+up": (14336, 4096), "down": (4096, 14336)}
    assert {"q": (4096, 3584), "o": (3584, 4096)}.items() <= {
        layer.layer: (layer.outputs, layer.inputs) for layer in cases.layers_of("gemma-2-9b")
    }.items()
    assert "gpt-oss-20b" not in cases.MODELS  # most of its weights are experts


def test_cases_of_heads_and_of_a_softmax():
    found = lm_head.expand(HEAD_OPERATIONS, lm_head.heads_of(("small",)), ("bf16",), WEIGHTS, (1, 8))
    assert {case.operation for case in found if case.weights != "same"} == {"sample"}
    assert len(found) == 2 * (len(HEAD_OPERATIONS) + 2)
    assert (found[0].vocabulary, found[0].hidden) == (8192, 1024)
    assert [(c.rows, c.columns, c.inputs, c.calls) for c in matmul_softmax.expand(("fp32",))] == [
        (1024, 4096, 64, 1),
        (1024, 4096, 128, 1),
        (1024, 4096, 1024, 1),
        (16, 16, 40, 10_000),
    ]
    assert len(matmul_softmax.expand(("fp32", "bf16"), (8,), (16, 32), (4,))) == 4


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
    ("kind", "dtype"), few_rows(product(WEIGHTS, ("fp32", "bf16")), *product(WEIGHTS, ("fp32",)), ("same", "bf16"))
)
def test_forms_of_torch_compute_the_same(kind, dtype):
    case = layer(kind, dtype)
    inputs = forms.make_inputs(case, "cpu", 0)
    found = forms.torch_forms(case, inputs, compiled=False)
    assert next(iter(found)) == "F.linear"
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


@pytest.mark.parametrize("kind", WEIGHTS)
def test_a_layer_is_checked_and_timed(kind, monkeypatch):
    result = LINEAR.run_case(layer(kind), OPTIONS)
    row = result.row
    assert row.status == "ok" and row.rounds == 2 and row.gbytes_per_s > 0 and row.plain_ratio > 0, row.note
    assert (row.torch_form == "F.linear") == (kind == "same")
    scales = 0 if kind == "same" else 64 * 3 * 4
    assert row.bytes == scales + {"same": 64 * 96 * 4, "int8": 64 * 96, "int4": 64 * 64}[kind]
    read_back(LINEAR, result)
    fast = Peaks({}, {"memory": 2000.0, "L3": 4000.0}, {}, {"L3": row.bytes + 1})
    held = with_peaks([result], [fast])[0].row
    assert held.bound_by == "memory"  # though one copy of the weight fits in the cache
    assert held.percent_of_peak == pytest.approx(row.gbytes_per_s / 20)
    slow = Peaks({instruction(row.arch, row.dtype): 1e-3}, {"memory": 2000.0})
    assert with_peaks([result], [slow])[0].row.bound_by == "arithmetic"
    right = xeflash.linear
    for change in (lambda x: x * 1.05, lambda x: x + float("nan"), lambda x: x[:, 1:]):
        monkeypatch.setattr(xeflash, "linear", lambda x, change=change, **more: change(right(x, **more)))
        assert LINEAR.run_case(layer(kind), OPTIONS).row.status == "failed"


@pytest.mark.parametrize("operation", HEAD_OPERATIONS)
def test_an_operation_of_a_head_is_checked_and_timed(operation):
    result = HEAD.run_case(head(operation), OPTIONS)
    row = result.row
    assert row.status == "ok", row.note
    assert set(result.samples_ms) >= {"xeflash", "eager"} and row.plain_form == "eager"
    assert 0 < row.min_ms <= row.median_ms
    assert (row.max_error is None) == (operation in ("argmax", "sample"))
    assert row.peak_bytes < row.eager_peak_bytes or operation in ("argmax", "sample", "train-workspace")
    read_back(HEAD, result)


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_quantised_heads(kind):
    row = HEAD.run_case(head("sample", kind, "bf16"), OPTIONS).row
    assert row.status == "ok", row.note


def test_torchs_chunks_are_measured_where_torch_has_them():
    if not hasattr(torch.nn, "LinearCrossEntropyOptions"):
        pytest.skip("this torch has no chunked loss")
    assert "chunked" in HEAD.run_case(head("loss"), OPTIONS).samples_ms


def test_a_softmax_is_checked_and_timed():
    result = SOFTMAX.run_case(SMALL, OPTIONS)
    row = result.row
    assert row.status == "ok", row.note
    assert set(result.samples_ms) == {"xeflash", "eager", "compiled"}
    assert row.max_error <= row.allowed_error
    assert row.gflops == pytest.approx(2e-6 * 8 * 16 * 24 * 3 / row.median_ms)
    assert row.peak_bytes == 8 * 16 * 4
    assert row.eager_peak_bytes == 2 * row.peak_bytes
    read_back(SOFTMAX, result)


@pytest.mark.parametrize(
    ("name", "benchmark", "case"),
    [
        ("linear_cross_entropy", HEAD, head("loss")),
        ("linear_top_k", HEAD, head("top-k")),
        ("matmul_softmax", SOFTMAX, SMALL),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_wrong_results_fail(monkeypatch, name, benchmark, case):
    right = getattr(xeflash, name)

    def wrong(*arguments, **more):
        found = right(*arguments, **more)
        return (found[0] + 1, *found[1:]) if isinstance(found, tuple) else found * 1.01 + 0.1

    monkeypatch.setattr(xeflash, name, wrong)
    row = benchmark.run_case(case, OPTIONS).row
    assert row.status == "failed" and "wrong result" in row.note


def test_memory_that_is_not_there_skips(monkeypatch):
    monkeypatch.setattr(runner, "available_memory", lambda *_: 1000)
    for benchmark, case in ((LINEAR, layer("int4")), (HEAD, head("loss")), (SOFTMAX, SMALL)):
        row = benchmark.run_case(case, OPTIONS).row
        assert row.status == "skipped" and "needs about" in row.note


SIZES = {
    "linear": ["--outputs", "64", "--inputs", "96", "--rows", "1,3", "--no-peak", "--group", "32"],
    "lm-head": [
        "--vocabulary",
        "200",
        "--hidden",
        "64",
        "--rows",
        "3",
        "--operation",
        "loss,sample",
        "--weights",
        "same,int4",
    ],
    "matmul-softmax": ["--rows", "8", "--columns", "16", "--inputs", "24", "--device", "cpu"],
}
FOUND = {
    "linear": [{"weights": kind, "rows": n} for kind in WEIGHTS for n in (1, 3)],
    "lm-head": [
        {"operation": "loss", "weights": "same"},
        *({"operation": "sample", "weights": k} for k in ("same", "int4")),
    ],
    "matmul-softmax": [{"rows": 8, "columns": 16, "inputs": 24, "calls": 1}],
}


@pytest.mark.parametrize("what", SIZES)
def test_the_command_writes_table_file_and_picture(what, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    file, picture = tmp_path / "out.json", tmp_path / "out.png"
    words = ["bench", what, "--rounds", "1", "--dtype", "fp32", *SIZES[what]]
    assert main([*words, "--output", str(file), "--plot", str(picture)]) == 0
    rows = json.loads(file.read_text())["rows"]
    assert [{name: row[name] for name in want} for row, want in zip(rows, FOUND[what], strict=True)] == FOUND[what]
    assert picture.stat().st_size > 10_000
    assert "| ratio per round |" in capsys.readouterr().out


def test_nothing_of_torch_is_timed_if_nobody_asks(capsys):
    words = ["--rounds", "1", "--dtype", "fp32", *SIZES["linear"], "--weights", "int4", "--compare", "none"]
    assert main(["bench", "linear", *words, "--format", "csv"]) == 0
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
    with pytest.raises(SystemExit):
        main(["bench", "lm-head", "--operation", "nothing"])
