"""`xeflash bench lm-head`: its cases, what it measures, and that a wrong result fails."""

import json

import pytest
import torch
import xeflash
from xeflash.bench import formats
from xeflash.bench import lm_head as bench
from xeflash.bench.cases import HEAD_OPERATIONS
from xeflash.bench.linear.cases import WEIGHTS
from xeflash.cli import main


def case(operation, weights="same", dtype="fp32"):
    return bench.HeadCase(operation, "-", 300, 128, dtype, weights, 5)


def test_only_tokens_are_drawn_from_quantised_heads():
    cases = bench.expand(HEAD_OPERATIONS, bench.heads_of(("small",)), ("bf16",), WEIGHTS, (1, 8))
    assert {c.operation for c in cases if c.weights != "same"} == {"sample"}
    assert len(cases) == 2 * (len(HEAD_OPERATIONS) + 2)
    assert (cases[0].vocabulary, cases[0].hidden) == (8192, 1024)


@pytest.mark.parametrize("operation", HEAD_OPERATIONS)
def test_a_case_is_checked_and_timed(operation):
    (result,) = bench.run([case(operation)], bench.Options(rounds=2))
    row = result.row
    assert row.status == "ok", row.note
    assert set(result.samples_ms) >= {"xeflash", "eager"}
    assert 0 < row.min_ms <= row.median_ms
    assert (row.max_error is None) == (operation in ("argmax", "sample"))
    assert row.peak_bytes < row.eager_peak_bytes or operation in ("argmax", "sample", "train-workspace")
    for name, read in formats.READERS.items():
        written = formats.WRITERS[name](bench.header(bench.Options()), [result], bench.LAYOUT)
        assert read(written, bench.LAYOUT)[0].row == row


@pytest.mark.parametrize("weights", ["int8", "int4"])
def test_quantised_heads(weights):
    (result,) = bench.run([case("sample", weights, "bf16")], bench.Options(rounds=1))
    assert result.row.status == "ok", result.row.note


@pytest.mark.parametrize(("name", "operation"), [("linear_cross_entropy", "loss"), ("linear_top_k", "top-k")])
def test_wrong_results_fail(monkeypatch, name, operation):
    right = getattr(xeflash, name)

    def wrong(*arguments, **more):
        found = right(*arguments, **more)
        return (found[0] + 1, *found[1:]) if isinstance(found, tuple) else found + 1

    monkeypatch.setattr(xeflash, name, wrong)
    (result,) = bench.run([case(operation)], bench.Options(rounds=1))
    assert result.row.status == "failed" and "wrong result" in result.row.note


def test_torchs_chunks_are_measured_where_torch_has_them():
    if not hasattr(torch.nn, "LinearCrossEntropyOptions"):
        pytest.skip("this torch has no chunked loss")
    (result,) = bench.run([case("loss")], bench.Options(rounds=1))
    assert result.row.chunked_ratio is not None, result.row.note


def test_the_command_writes_a_table_and_a_picture(tmp_path, capsys):
    file, picture = tmp_path / "out.json", tmp_path / "out.png"
    words = ["--rounds", "1", "--vocabulary", "200", "--hidden", "64", "--rows", "3", "--dtype", "fp32"]
    words += ["--operation", "loss,sample", "--weights", "same,int4", "--output", str(file), "--plot", str(picture)]
    assert main(["bench", "lm-head", *words]) == 0
    found = [(row["operation"], row["weights"]) for row in json.loads(file.read_text())["rows"]]
    assert found == [("loss", "same"), ("sample", "same"), ("sample", "int4")]
    assert picture.stat().st_size > 10_000
    assert "of eager" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["bench", "lm-head", "--operation", "nothing"])
