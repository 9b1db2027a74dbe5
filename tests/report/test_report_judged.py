"""Rates that cannot be, and the row of a report."""

import pytest
from xeflash.report import judged
from xeflash.report.cases import CASES, LAUNCH
from xeflash.selftest.limits import limits_of

B580 = limits_of("Intel(R) Arc(TM) B580 Graphics", 160)
PREFILL, DECODE = "prefill bf16 B1 H40/40 D128 4096x4096", "decode bf16 B16 H16/8 D128 1x4096"


def row(name=DECODE, **fields):
    return {"name": name, "status": "ok", "note": "", "ms": 1.0, "gbytes_per_s": 400.0, "tflops": 1.0, **fields}


@pytest.mark.parametrize(
    ("fields", "limits", "note", "valid"),
    [
        ({"gbytes_per_s": 457.0}, B580, "above the peak of 456 GB/s: not shown", False),
        ({"tflops": 117.0}, B580, "above the peak of 116.7 TFLOP/s: not shown", False),
        ({"name": "forward fp32 d128", "tflops": 15.0}, B580, "above the peak of 14.6 TFLOP/s: not shown", False),
        ({"gbytes_per_s": 900.0, "ms": 0.02}, B580, "above the peak of 456 GB/s: not shown, as a cache", True),
        ({"percent_of_peak": 101.0, "peak": 500.0, "bound_by": "arithmetic"}, None, "500 GFLOP/s, as measured", False),
    ],
)
def test_a_rate_above_the_peak_is_not_shown_and_the_report_is_not_valid(fields, limits, note, valid):
    found = judged.without_impossible(row(**fields), limits)
    assert found["tflops"] is None and found["gbytes_per_s"] is None and not found.get("percent_of_peak")
    assert note in found["note"] and found["valid"] is valid and found["ms"]
    assert bool(judged.doubts({"card": {"cases": [found]}})) is not valid


@pytest.mark.parametrize("fields", [{}, {"tflops": 116.0}, {"gbytes_per_s": 455.0}, {"ms": None}])
def test_other_rates_stay(fields):
    assert judged.without_impossible(row(**fields), B580) == row(**fields)


def test_the_worst_and_the_best_are_in_the_row():
    cases = [
        row(PREFILL, tflops=83.8, ratio=1.5, ratio_low=1.4, ratio_high=1.6),
        row(DECODE, gbytes_per_s=406.0, percent_of_limit=89.0, ratio=0.9, ratio_low=0.8, ratio_high=1.1),
        row(LAUNCH.label, ms=0.012, tflops=0.0, gbytes_per_s=0.1, ratio=0.1, ratio_low=0.1, ratio_high=0.1),
        row("prefill bf16 B4 H8/8 D64 2048x2048", status="died", tflops=99.0),
    ]
    report = {"device": {"name": "B|580", "driver": "1.6"}, "environment": {"packages": {"xeflash": "0.1.0"}}}
    report |= {"selftest": {"cases": [row("a"), row("b", status="wrong")]}, "card": {"cases": cases}, "valid": False}
    cells = judged.cells(report)
    assert len(cells) == len(judged.HEAD)
    assert judged.markdown(cells) == (
        "| B/580 | 1.6 | 0.1.0 | 1/2 | 0.90x (0.800 to 1.10) | 83.8 | 406 (89 % of peak) | 12.0 | - | no |"
    )
    assert [x.split(":")[0] for x in judged.doubts(report)] == ["selftest", "card"]


def test_there_are_twelve_calls_and_a_launch():
    assert len(CASES) == 13 and {PREFILL, DECODE, LAUNCH.label} <= set(CASES)
