"""Statistics, rows, formats and the picture, from made-up samples."""

import csv
import dataclasses
import io
import json
import math
import sys

import pytest
from rich.console import Console
from xeflash.bench import formats, plot, screen
from xeflash.bench.attention import BENCHMARK, Row
from xeflash.bench.cases import Case
from xeflash.bench.limits import Peaks, instruction
from xeflash.bench.rows import Result, Work, case_of, compared, with_peaks
from xeflash.bench.stats import ratio_of_medians, ratios_of_rounds, summarize
from xeflash.bench.timing import in_turns, interleave
from xeflash.cli import bench_shared, build_parser

PREFILL = Case("prefill", "bf16", 1, 8, 8, 64, 1000, 1000, causal=True)
DECODE = Case("decode", "fp32", 2, 8, 2, 128, 1, 1000, causal=False)
HEADER = {
    "environment": {"cpu": "a CPU", "packages": {"torch": None}},
    "peaks": {},
    "method": ["one", "two"],
}


LAYOUT = BENCHMARK.layout


def drawn(results):
    return plot.figure(BENCHMARK.picture, results, "title")


def row_of(case, **fields):
    return Row(**dataclasses.asdict(case), **fields)


def result(case=PREFILL, **samples):
    samples = {name: tuple(values) for name, values in samples.items()}
    fields = {"first_call_ms": 12.5, "max_error": 1e-3, "allowed_error": 2e-3}
    fields |= {"threads": 2048, "percent_of_device": 320.0, "splits": 8, "partial_bytes": 133120}
    fields |= compared(samples)
    fields |= {
        "gflops": 1e-6 * case.flops / fields["median_ms"],
        "gbytes_per_s": 1e-6 * case.kv_bytes / fields["median_ms"],
    }
    return Result(
        row_of(case, **fields), samples, Work(instruction("cpu-avx512", case.dtype), case.flops, case.kv_bytes)
    )


def some_results():
    return [
        result(xeflash=[2.0, 1.0, 4.0], sdpa=[6.0, 5.0, 4.0]),
        result(DECODE, xeflash=[1.0], enable_gqa=[9.0], grouped=[3.0]),
        Result(row_of(DECODE, status="failed", note="wrong | result, see\nabove")),
    ]


def test_summary_of_a_series():
    summary = summarize([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (summary.median, summary.minimum, summary.quartile_1, summary.quartile_3) == (3, 1, 2, 4)
    assert (summary.iqr, summary.count) == (2, 5)
    assert summarize([7.0]).iqr == 0
    assert summarize([0.0, 1.0]).quartile_1 == 0.25
    with pytest.raises(ValueError, match="must not be empty"):
        summarize([])


def test_ratio_per_round_is_not_the_ratio_of_medians():
    slow, fast = [2.0, 30.0, 4.0], [1.0, 10.0, 4.0]
    assert ratio_of_medians(slow, fast) == 1.0
    assert ratios_of_rounds(slow, fast) == (2.0, 1.0, 3.0)
    with pytest.raises(ValueError, match="argument 2"):
        ratios_of_rounds([1.0], [1.0, 2.0])


def test_row_compares_with_the_best_and_the_plain_form():
    row = result(DECODE, xeflash=[1.0], enable_gqa=[9.0], grouped=[3.0]).row
    assert (row.torch_form, row.ratio, row.ratio_per_round) == ("grouped", 3.0, 3.0)
    assert (row.plain_form, row.plain_ratio) == ("enable_gqa", 9.0)
    assert case_of(Case, row) == DECODE
    same = compared({"xeflash": [1.0], "F.linear": [2.0], "int8pack": [3.0]}, ["int8pack"])
    assert (same["torch_form"], same["ratio"], same["plain_ratio"]) == ("int8pack", 3.0, 2.0)


def test_row_without_torch_has_no_ratio():
    row = result(xeflash=[2.0, 2.0]).row
    assert row.median_ms == 2.0 and row.torch_form is row.ratio is row.plain_ratio is None


def test_rows_name_the_peak_that_holds_them():
    peaks = Peaks({("cpu-avx512", "fp32"): 1000.0}, {"memory": 10.0, "L3": 50.0}, {}, {"L3": 1 << 20})
    results = [result(xeflash=[2.0]), result(DECODE, xeflash=[1.0])]
    results = [r.with_row(arch="cpu-avx512") for r in results]
    prefill, decode = (r.row for r in with_peaks(results, [peaks] * 2))
    assert (prefill.bound_by, prefill.peak) == ("arithmetic", 1000.0)
    assert prefill.percent_of_peak == pytest.approx(100 * prefill.gflops / 1000)
    assert (decode.bound_by, decode.peak) == ("memory", 10.0)  # 4 MB do not fit in the cache
    assert decode.percent_of_peak == pytest.approx(100 * decode.gbytes_per_s / 10)
    cells = LAYOUT.tables["decode"]
    assert [cells[name](decode) for name in ("arch", "% of peak", "bound by")] == [
        "cpu-avx512", "41 %", "memory, 10.0 GB/s",
    ]  # fmt: skip
    assert cells["bound by"](prefill) == "arithmetic, 1000 GFLOP/s"
    assert with_peaks(results, [Peaks()] * 2) == results
    slow = dataclasses.replace(peaks, gflops={("cpu-avx512", "fp32"): prefill.gflops / 2})
    faster, _ = (r.row for r in with_peaks([results[0]] * 2, [slow, peaks]))
    assert (faster.peak, faster.percent_of_peak) == (1000.0, prefill.percent_of_peak)  # no row passes its peak


def test_json_and_json_lines_can_be_read_back():
    results = some_results()
    assert formats.from_json(formats.to_json(HEADER, results, LAYOUT), LAYOUT) == results
    assert formats.from_jsonl(formats.to_jsonl(HEADER, results, LAYOUT), LAYOUT) == results
    assert json.loads(formats.to_json(HEADER, results, LAYOUT))["environment"]["cpu"] == "a CPU"


def test_json_has_no_nan():
    bad = some_results()[0].with_row(max_error=math.nan)
    assert formats.from_json(formats.to_json(HEADER, [bad], LAYOUT), LAYOUT)[0].row.max_error is None


def test_csv_can_be_read_back_without_samples():
    results = some_results()
    results[2] = Result(row_of(DECODE, status="failed", note='a, "quoted" note'))
    text = formats.to_csv(HEADER, results, LAYOUT)
    assert [r.row for r in formats.from_csv(text, LAYOUT)] == [r.row for r in results]
    assert text.startswith("# cpu: a CPU\n# packages: torch -\n# method: one\n# method: two\nphase,")


def test_csv_notes_keep_to_one_line():
    text = formats.to_csv({}, [Result(row_of(DECODE, status="failed", note="a\n# b"))], LAYOUT)
    assert len(list(csv.reader(text.splitlines()))) == 2
    assert formats.from_csv(text, LAYOUT)[0].row.note == "a # b"


def test_markdown_has_a_table_per_phase_with_equal_cells():
    text = formats.to_md(HEADER, some_results(), LAYOUT)
    assert text.startswith("### prefill: dtype bf16, B 1, Hq/Hkv 8/8, D 64, S 1000, causal yes\n")
    assert text.index("### prefill") < text.index("### decode")
    assert text.endswith("\n- cpu: a CPU\n- packages: torch -\n- method: one\n- method: two\n")
    tables = [part.split("\n\n")[1].splitlines() for part in text.split("### ")[1:]]
    assert [len(table) for table in tables] == [2 + 1, 2 + 2]
    for table in tables:
        assert len({line.count("|") for line in table}) == 1
    cells = [cell.strip() for cell in tables[0][2].strip("|").split("|")]
    assert dict(zip([c.strip() for c in tables[0][0].strip("|").split("|")], cells, strict=True)) == {
        "xeflash ms": "2.00 (1.00, 1.5)",
        "GFLOP/s": "512",
        "torch form": "sdpa",
        "torch ms": "5.00 (4.00, 1.0)",
        "ratio per round": "3.00x (1.00 to 5.00)",
        "ratio": "2.50x",
        "plain torch": "2.50x",
        "error / allowed": "1.0e-03 / 2.0e-03",
        "threads": "2048",
        "of device": "320 %, 4 waves",
        "splits": "8",
        "partial": "133 kB",
    }
    assert "failed: wrong / result, see above" in text


def test_a_table_that_is_not_wide_has_what_a_newcomer_needs():
    text = formats.to_md(HEADER, lengths(DECODE, 1000, 2000), LAYOUT, wide=False)
    title, _, names, _, first, *_ = text.splitlines()
    assert title == "### decode: dtype fp32, B 2, Hq/Hkv 8/2, D 128"
    assert names == "| KV | xeflash ms | GB/s of KV | torch ms | ratio per round |"
    assert first.startswith("| 1000 | 0.0946 (0.0912, 0.0094) | ") and first.endswith(" | 2.64x (2.19 to 3.64) |")
    assert "method" not in text and "threads" not in text and text.endswith("- device: a CPU, ? CPUs\n")
    assert "xeflash ms: median (minimum, interquartile range)" in text and "plain torch:" not in text


TREE = Case("verify", "fp32", 2, 8, 2, 128, 8, 1000, causal=False)


def of_a_tree():
    samples = {"xeflash": [2.0, 1.0, 3.0], "masked": [9.0, 8.0, 7.0], "causal": [4.0, 3.0, 2.0]}
    return Result(row_of(TREE, **compared(samples), gbytes_per_s=5.0), samples)


def test_the_table_of_a_tree_names_the_causal_call():
    title, _, names, _, row, *_ = formats.to_md(HEADER, [of_a_tree()], LAYOUT, wide=False).splitlines()
    assert title == "### verify: dtype fp32, B 2, Hq/Hkv 8/2, D 128, nodes 8, KV 1000"
    assert names == "| xeflash ms | causal ms | causal / ours | GB/s of KV | torch ms | ratio per round |"
    assert row.startswith("| 2.00 ") and "| 3.00 | 1.50x |" in row and "| 8.00 " in row


def test_no_results_give_no_table():
    assert "###" not in formats.to_md(HEADER, [], LAYOUT)
    assert formats.from_csv(formats.to_csv(HEADER, [], LAYOUT), LAYOUT) == []


def lengths(case, *sizes):
    """Results of a case with other numbers of keys."""
    cases = [dataclasses.replace(case, seq_k=size) for size in sizes]
    return [
        result(case, xeflash=[0.0946, 0.0912, 0.11], enable_gqa=[9, 8, 1], grouped=[0.25, 0.2, 0.4]) for case in cases
    ]


def shown(results, width, wide=True):
    file = io.StringIO()
    screen.print_results(HEADER, results, LAYOUT, Console(file=file, width=width), wide)
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_tables_fit_the_terminal(width):
    text = shown(lengths(DECODE, 1000, 16384) + some_results()[1:], width, wide=False)
    assert all(len(line) <= width for line in text.splitlines())
    for whole in ("0.0946 (0.0912, 0.0094)", "0.250 (0.200, 0.10)", "2.64x", "a CPU"):
        assert whole in text  # on one line
    for name in LAYOUT.shown(lengths(DECODE, 1000, 16384), wide=False)[0].columns:
        assert name in " ".join(text.split()), f"{name} is neither in the table nor said to be left out"
    assert "failed" in text
    left_out = [line for line in text.splitlines() if "no room" in line]
    assert bool(left_out) == (width < 100)
    assert text.splitlines()[2] == "decode: dtype fp32, B 2, Hq/Hkv 8/2, D 128"


def test_a_wide_table_is_whole_on_a_narrow_terminal():
    results = lengths(DECODE, 1000, 16384)
    assert "no room" not in shown(results, 80)
    assert shown(results, 80).splitlines()[:8] == shown(results, 400).splitlines()[:8]
    (names,) = (line for line in shown(results, 80).splitlines() if line.startswith("KV "))
    assert all(name in names for name in LAYOUT.shown(results, wide=True)[0].columns)


@pytest.mark.parametrize(
    ("words", "terminal", "markdown"),
    [([], True, False), ([], False, True), (["--format", "md"], True, True), (["--output", "FILE"], True, False)],
)
def test_a_terminal_gets_a_table_that_fits_unless_another_is_asked_for(
    monkeypatch, tmp_path, words, terminal, markdown
):
    stdout = io.StringIO()
    stdout.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stdout", stdout)
    words = [str(tmp_path / "out.md") if word == "FILE" else word for word in words]
    arguments = build_parser().parse_args(["bench", "attention", *words])
    bench_shared.write(arguments, HEADER, some_results(), LAYOUT, lambda device: None)
    assert ("| --- |" in stdout.getvalue()) == markdown
    assert "threads" not in stdout.getvalue() and "method: two" not in stdout.getvalue()
    if "--output" in words:
        assert (
            stdout.getvalue().endswith(f"method: {tmp_path / 'out.md'}\n")
            and "| threads |" in (tmp_path / "out.md").read_text()
        )
    else:
        assert stdout.getvalue().endswith("method: --wide, or for reports --output FILE.json\n")
    arguments.wide = True
    bench_shared.write(arguments, HEADER, some_results(), LAYOUT, lambda device: None)
    assert "threads" in stdout.getvalue() and "method: two" in stdout.getvalue()
    assert stdout.getvalue().count("--wide, or") == ("--output" not in words)


def test_picture_tells_device_axes_and_spread():
    pytest.importorskip("matplotlib")
    results = [*some_results()[:1], *lengths(DECODE, 1000, 16384)]
    picture = plot.figure(BENCHMARK.picture, results, "title\nan Arc B580")
    assert picture.get_suptitle() == "title\nan Arc B580"
    prefill, decode = picture.axes
    assert decode.get_title() == "decode fp32, batch 2, query heads 8, KV heads 2, head dim 128"
    assert (prefill.get_ylabel(), decode.get_ylabel(), decode.get_xlabel()) == ("GFLOP/s", "GB/s of K and V", "keys")
    assert [tick.get_text() for tick in decode.get_xticklabels()] == ["1000", "16k"]
    rates = [1e-6 * PREFILL.flops / ms for ms in (2.0, 3.0, 1.5)]  # at the median and the quartiles of 2, 1, 4 ms
    ours, torchs = (bars for bars in prefill.containers if hasattr(bars, "errorbar"))
    assert [bar.get_height() for bar in ours] == pytest.approx(rates[:1])
    ((low, high),) = (segment[:, 1] for segment in ours.errorbar.lines[2][0].get_segments())
    assert (low, high) == pytest.approx(tuple(rates[1:]))
    assert legend_of(picture) == ["xeflash", "torch, best form"]


def legend_of(figure):
    (legend,) = figure.legends
    assert all(axis.get_legend() is None for axis in figure.axes)
    return [text.get_text() for text in legend.get_texts()]


def test_picture_without_torch_has_no_bars_of_torch():
    pytest.importorskip("matplotlib")
    assert legend_of(drawn([result(xeflash=[2.0, 3.0])])) == ["xeflash"]


def test_picture_has_the_peak_of_each_case_as_a_line_with_its_name():
    pytest.importorskip("matplotlib")
    limits = [("memory", 20.0, 50.0), ("L3", 100.0, 10.0), (None, None, None)]
    results = [
        r.with_row(bound_by=name, peak=peak, percent_of_peak=percent)
        for r, (name, peak, percent) in zip(lengths(DECODE, 1000, 2000, 4000), limits, strict=True)
    ]
    picture = drawn(results)
    assert sorted(legend_of(picture)) == [
        "peak: L3, 100 GB/s",
        "peak: memory, 20.0 GB/s",
        "torch, best form",
        "xeflash",
    ]
    (axis,) = picture.axes
    lines = {x.get_label(): x for x in axis.collections if x.get_label().startswith("peak")}
    for i, (name, factor) in enumerate((("peak: memory, 20.0 GB/s", 2), ("peak: L3, 100 GB/s", 10))):
        ((left, right),) = lines[name].get_segments()
        assert left[1] == pytest.approx(factor * results[i].row.gbytes_per_s)
        assert left[0] < i < right[0]


def test_peaks_of_one_kind_have_one_name():
    pytest.importorskip("matplotlib")
    results = [
        r.with_row(bound_by="memory", peak=peak, percent_of_peak=50.0)
        for case in (PREFILL, DECODE)
        for r, peak in zip(lengths(case, 1000, 2000), (20.0, 30.0), strict=True)
    ]
    names = legend_of(drawn(results))
    assert sorted(names) == ["peak: memory, 20.0 to 30.0 GB/s", "torch, best form", "xeflash"]


@pytest.mark.parametrize("count", [1, 2, 4, 6, 12])
def test_pictures_fit_a_screen(count, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    kinds = [
        (phase, dtype) for phase in ("prefill", "decode", "backward", "train") for dtype in ("fp32", "bf16", "fp16")
    ]
    cases = [dataclasses.replace(PREFILL, phase=phase, dtype=dtype) for phase, dtype in kinds[:count]]
    path = tmp_path / "out.png"
    plot.save(drawn([result(case, xeflash=[2.0, 3.0]) for case in cases]), path)
    height, width, _ = image.imread(path).shape
    assert 300 < height <= 1000 and 600 < width <= 1600
    assert len(drawn([result(case, xeflash=[2.0]) for case in cases]).axes) == count


def test_device_of_a_result():
    environment = {"cpu": "a CPU", "cpus": 2, "device": "cpu"}
    assert formats.device_of({"environment": environment}) == "a CPU, 2 CPUs"
    assert formats.device_of({"environment": environment | {"device": "xpu:0, a GPU"}}) == "xpu:0, a GPU"


def test_picture_is_written(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.png"
    plot.save(drawn(some_results()), path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_picture_of_failures_is_refused():
    pytest.importorskip("matplotlib")
    with pytest.raises(plot.PlotError, match="no successful case"):
        drawn(some_results()[2:])


def test_absent_matplotlib_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(plot.PlotError, match=r'pip install "xeflash\[bench\]"'):
        plot.require_matplotlib()


def test_interleaving_takes_every_sample_of_every_call():
    seen = []
    samples = interleave({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, rounds=3)
    assert {name: len(series) for name, series in samples.items()} == {"a": 3, "b": 3}
    assert all(value >= 0 for series in samples.values() for value in series)
    turns = [name for i, name in enumerate(seen) if i == 0 or seen[i - 1] != name]
    assert turns == ["a", "b", "a", "b", "a", "b"]  # estimates, then rounds ab, ba, ab
    assert list(in_turns("abc", 4)) == list("abcbcacababc") and list(in_turns("", 3)) == []
