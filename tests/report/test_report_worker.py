"""The process of a report, without being one: what it answers, and what the journal has before each launch."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
import xeflash
from xeflash.bench import forms, peak
from xeflash.bench.limits import Peaks, instruction
from xeflash.report import card, journal, worker
from xeflash.report.cases import CASES, LAUNCH
from xeflash.selftest.device import open_device

EMPTY = LAUNCH.label
DECODE, PREFILL = "decode bf16 B8 H16/8 D64 1x4096", "prefill bf16 B1 H32/8 D128 4096x4096 causal"


@pytest.fixture(scope="module")
def device():
    return open_device("cpu")


@pytest.fixture
def kept(tmp_path):
    file = tmp_path / "journal"
    file.touch()
    return journal.Journal(str(file))


def lines(kept):
    with open(kept.path) as file:
        return [json.loads(line) for line in file]


@pytest.fixture
def meter(monkeypatch):
    """A machine that multiplies as nothing when it is measured first, and fast when it is measured again."""
    case = CASES[DECODE]
    by = instruction(peak.arch_of(case.algorithm, case.dtype, "cpu"), case.dtype)
    found = SimpleNamespace(peaks=Peaks(), samples=0)

    def sample():
        found.samples += 1
        found.peaks = Peaks({by: 1e-3 if found.samples < 3 else 1e6})

    found.sample = sample
    monkeypatch.setattr(card, "_meter", lambda _: found)
    return found


@pytest.mark.parametrize("name", [DECODE, PREFILL, EMPTY, "forward bf16 d64 2/2 127x127"])
def test_a_case_is_checked_and_the_journal_has_it_with_its_kernels(kept, device, name):
    answer = worker.respond(kept, {"name": name, "timed": False}, *device)
    assert answer["status"] == "ok" and answer["kernels"] and answer["tiles_from"] and "ms" not in answer
    begun = [{"case": name, "kernels": kernels} for kernels in ([], answer["kernels"])]
    assert lines(kept) == [*begun, {"case": name}]


def test_the_journal_has_a_case_before_its_launch(kept, device, monkeypatch):
    seen, real = [], xeflash.attention

    def attention(*args, **kwargs):
        seen.append(len(lines(kept)))
        return real(*args, **kwargs)

    monkeypatch.setattr(xeflash, "attention", attention)
    worker.respond(kept, {"name": EMPTY, "timed": False}, *device)
    assert seen == [1, 2]  # described, then run


def test_a_case_is_timed_beside_torch_and_held_to_the_peak_that_is_measured_again(kept, device, meter, monkeypatch):
    monkeypatch.setattr(card, "_SECONDS", 0.0)
    answer = worker.respond(kept, {"name": DECODE, "timed": True}, *device)
    assert answer["status"] == "ok" and answer["rounds"] == 3 and answer["torch_form"] in ("enable_gqa", "grouped")
    assert answer["ratio_low"] <= answer["ratio_per_round"] <= answer["ratio_high"]
    assert answer["gbytes_per_s"] == pytest.approx(1e-6 * CASES[DECODE].kv_bytes / answer["ms"])
    assert answer["tflops"] == pytest.approx(1e-9 * CASES[DECODE].flops / answer["ms"])
    assert meter.samples == 3 and 0 < answer["percent_of_peak"] <= 100


def test_a_form_that_torch_refuses_is_no_fault_of_ours(kept, device, meter, monkeypatch):
    monkeypatch.setattr(card, "_SECONDS", 0.0)
    real = forms.torch_forms

    def refused():
        raise NotImplementedError("not on this device")

    monkeypatch.setattr(forms, "torch_forms", lambda case, inputs: {**real(case, inputs), "enable_gqa": refused})
    answer = worker.respond(kept, {"name": DECODE, "timed": True}, *device)
    assert (answer["status"], answer["torch_form"]) == ("ok", "grouped")
    assert answer["note"] == "torch's enable_gqa: NotImplementedError"
    monkeypatch.setattr(forms, "torch_forms", lambda *_: {"sdpa": refused})
    answer = worker.respond(kept, {"name": DECODE, "timed": True}, *device)
    assert answer["status"] == "ok" and answer["ms"] > 0 and "ratio" not in answer


def test_a_wrong_result_is_not_timed(kept, device, meter, monkeypatch):
    real = xeflash.attention
    monkeypatch.setattr(xeflash, "attention", lambda *args, **kwargs: real(*args, **kwargs) + 1)
    answer = worker.respond(kept, {"name": DECODE, "timed": True}, *device)
    assert answer["status"] == "wrong" and "ms" not in answer and meter.samples == 0


@pytest.mark.xpu
def test_a_case_is_timed_beside_torch_on_xpu(kept, xpu, monkeypatch):
    case = dataclasses.replace(LAUNCH, dtype="fp32")
    monkeypatch.setitem(CASES, case.label, case)
    monkeypatch.setattr(card, "_SECONDS", 0.0)
    monkeypatch.setattr(
        card, "_meter", lambda _: SimpleNamespace(peaks=Peaks({}, {"memory": 1e9}), sample=lambda: None)
    )
    answer = worker.respond(kept, {"name": case.label, "timed": True}, *open_device("xpu"))
    assert answer["status"] == "ok" and answer["torch_form"] == "sdpa" and answer["kernels"][0].startswith(xpu)
    assert answer["bound_by"] == "memory" and 0 < answer["percent_of_peak"] < 100
