"""`xeflash bench matmul-softmax`: its cases, what it measures, and that a wrong result fails."""

import pytest
import torch
import xeflash
from xeflash.bench import formats
from xeflash.bench import matmul_softmax as bench
from xeflash.cli import main


@pytest.fixture(autouse=True)
def _compile_nothing(monkeypatch):
    """Inductor would take seconds."""
    monkeypatch.setattr(torch, "compile", lambda f: f)


def test_the_usual_cases():
    cases = bench.expand(("fp32",), None, None, None)
    assert [(c.rows, c.columns, c.inputs, c.calls) for c in cases] == [
        (1024, 4096, 64, 1),
        (1024, 4096, 128, 1),
        (1024, 4096, 1024, 1),
        (16, 16, 40, 10_000),
    ]
    assert len(bench.expand(("fp32", "bf16"), (8,), (16, 32), (4,))) == 4


def test_a_case_is_checked_and_timed():
    cases = [bench.SoftmaxCase("fp32", 8, 16, 24, 3)]
    (result,) = bench.run(cases, bench.Options(rounds=2))
    row = result.row
    assert row.status == "ok", row.note
    assert set(result.samples_ms) == {"xeflash", "eager", "compiled"}
    assert 0 < row.min_ms <= row.median_ms
    assert row.max_error <= row.allowed_error
    assert row.peak_bytes == 8 * 16 * 4
    assert row.eager_peak_bytes == 2 * row.peak_bytes
    for name, read in formats.READERS.items():
        written = formats.WRITERS[name](bench.header(bench.Options()), [result], bench.LAYOUT)
        assert read(written, bench.LAYOUT)[0].row == row


def test_a_wrong_result_fails(monkeypatch):
    monkeypatch.setattr(xeflash, "matmul_softmax", lambda a, b: torch.softmax(a @ b.mT, -1) * 1.01)
    (result,) = bench.run([bench.SoftmaxCase("fp32", 8, 16, 24)], bench.Options(rounds=2))
    assert result.row.status == "failed"
    assert "wrong result" in result.row.note


def test_the_command_writes_table_file_and_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    file, picture = tmp_path / "rows.csv", tmp_path / "rows.png"
    words = ["--dtype", "fp32", "--rows", "8", "--columns", "16", "--inputs", "24", "--rounds", "2", "--device", "cpu"]
    assert main(["bench", "matmul-softmax", *words, "--output", str(file), "--plot", str(picture)]) == 0
    assert "| fp32 | 8 | 16 | 24 | 1 |" in capsys.readouterr().out
    assert "fp32,8,16,24,1,ok" in file.read_text()
    assert picture.stat().st_size > 1000
