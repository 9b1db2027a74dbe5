"""The benchmark as a whole on small cases, with torch itself in our place."""

import dataclasses
import itertools
import json
import os
import signal
import sys
from types import SimpleNamespace

import pytest
import torch
from cover import few_rows
from torch.nn.functional import scaled_dot_product_attention
from xeflash import _core
from xeflash.bench import attention, check, formats, forms, memory, peak, runner, shares
from xeflash.bench.attention import BENCHMARK
from xeflash.bench.blocks import random_blocks
from xeflash.bench.cases import Case
from xeflash.bench.runner import Options
from xeflash.cli import bench_shared, counted_blocks, main

CASES = [
    Case("prefill", "fp32", 2, 4, 4, 64, 23, 23, causal=True),
    Case("prefill", "bf16", 2, 4, 2, 64, 23, 23, causal=True),
    Case("prefill", "fp16", 1, 4, 1, 64, 23, 23, causal=False),
    Case("decode", "fp32", 2, 4, 4, 64, 1, 127, causal=False),
    Case("decode", "bf16", 2, 6, 2, 64, 1, 127, causal=False),
]
TREE = Case("verify", "fp32", 2, 6, 2, 64, 5, 127, causal=False)
GRADIENTS = [
    Case("backward", "fp32", 2, 4, 2, 64, 23, 23, causal=True),
    Case("train", "bf16", 2, 4, 2, 64, 23, 23, causal=False),
    Case("train", "fp32", 1, 4, 4, 64, 23, 23, causal=True),
]
ANY_PHASE = ["--head-dim", "64", "--heads", "4", "--rounds", "2", "--no-peak"]
DECODE = [*ANY_PHASE, "--kv-len", "127", "--phase", "decode", "--dtype", "fp32"]
SMALL = [*ANY_PHASE, "--seq", "23", "--kv-len", "127"]


def label(case):
    return case.label.replace(" ", "-")


pytestmark = pytest.mark.usefixtures("small_work")


@pytest.fixture
def torch_as_ours(monkeypatch):
    def our_form(case, inputs):
        return lambda: scaled_dot_product_attention(*inputs[:3], is_causal=case.causal, enable_gqa=case.group > 1)

    monkeypatch.setattr(forms, "our_form", our_form)


@pytest.mark.parametrize("case", CASES, ids=label)
def test_all_forms_of_torch_agree(case):
    inputs = forms.make_inputs(case, "cpu", seed=0)
    first, *others = (form() for form in forms.torch_forms(case, inputs).values())
    for other in others:
        torch.testing.assert_close(other, first)


def test_inputs_depend_on_the_seed_only():
    first, same, other = (forms.make_inputs(CASES[1], "cpu", seed).k for seed in (0, 0, 1))
    assert torch.equal(first, same)
    assert not torch.equal(first, other)
    assert first.shape == (2, 2, 23, 64)


@pytest.mark.parametrize("case", CASES, ids=label)
def test_check_accepts_torch_and_refuses_a_wrong_result(case):
    inputs = forms.make_inputs(case, "cpu", seed=0)
    theirs = next(iter(forms.torch_forms(case, inputs).values()))
    assert check.check(case, inputs, theirs, theirs).ok
    for wrong in (
        lambda: theirs() * 1.1,
        lambda: theirs() + float("nan"),
        lambda: torch.zeros_like(theirs()),
    ):
        assert not check.check(case, inputs, wrong, theirs).ok


def test_check_refuses_a_wrong_shape():
    case = CASES[0]
    inputs = forms.make_inputs(case, "cpu", seed=0)
    theirs = next(iter(forms.torch_forms(case, inputs).values()))
    with pytest.raises(ValueError, match="must have shape"):
        check.check(case, inputs, lambda: theirs()[..., :8], theirs)


def test_only_the_wrong_batch_entry_is_enough():
    case = CASES[0]
    inputs = forms.make_inputs(case, "cpu", seed=0)
    theirs = next(iter(forms.torch_forms(case, inputs).values()))

    def wrong():
        out = theirs().clone()
        out[-1, 0, 0, 0] = float("nan")
        return out

    assert not check.check(case, inputs, wrong, theirs).ok


@pytest.mark.parametrize(
    ("phase", "kv_dtype"),
    few_rows(itertools.product(("decode", "verify"), ("bf16", "fp8", "int8", "k8v4")), ("decode", "k8v4")),
)
def test_a_cache_has_the_arrays_of_its_type_and_their_numbers(phase, kv_dtype):
    case = dataclasses.replace(CASES[-1] if phase == "decode" else TREE, dtype="bf16", head_dim=128, kv_dtype=kv_dtype)
    inputs = forms.make_inputs(case, "cpu", seed=0)
    drawn = forms.make_inputs(dataclasses.replace(case, kv_dtype=""), "cpu", seed=0)
    assert sum(array.nbytes for array in inputs.cache.values()) == case.kv_bytes
    for given, exact, rounded, steps in zip(drawn[1:3], inputs.exact, inputs[1:3], (28, 7), strict=True):
        assert torch.equal(exact.bfloat16(), rounded)
        assert ((exact - given).abs() <= 1.001 * given.abs().amax(-1, keepdim=True).double() / steps).all()
    ours = forms.our_form(case, inputs)
    theirs, of_drawn = (next(iter(forms.torch_forms(case, x).values())) for x in (inputs, drawn))
    assert check.check(case, inputs, ours, theirs).ok
    assert kv_dtype != "k8v4" or not check.check(case, drawn, ours, of_drawn).ok
    assert shares.shares_here(case, "cpu").kernels[0].nibbles == (kv_dtype == "k8v4")


def test_each_node_sees_itself_and_what_its_parent_sees():
    tree = forms.random_tree(40, seed=0)
    assert torch.equal(tree, forms.random_tree(40, seed=0)) and not torch.equal(tree, forms.random_tree(40, seed=1))
    for node in range(1, 40):
        before = tree[node, :node]
        assert tree[node, node] and not tree[node, node + 1 :].any()
        assert any(torch.equal(before, parent) for parent in tree[:node, :node])
    assert tree[0].sum() == 1 and not torch.equal(tree, torch.ones(40, 40).tril().bool())


@pytest.mark.parametrize("phase", ["prefill", pytest.param("backward", marks=pytest.mark.wide)])
def test_blocks_are_checked_and_beside_torchs_mask(phase, monkeypatch):
    monkeypatch.setattr(forms, "flex_form", lambda case, inputs: refused)
    blocks = Case(phase, "fp32", 1, 2, 1, 64, 100, 100, causal=False, share=0.3, block_size=32)
    row = BENCHMARK.run_case(blocks, Options(rounds=1)).row
    assert (row.status, row.torch_form, row.picked, row.listed) == ("ok", "masked", 1, 0.25)
    every = dataclasses.replace(blocks, share=None)
    assert blocks.flops == every.flops / 4


def refused(*_, **__):
    raise NotImplementedError("not on this device")


def test_blocks_are_drawn_by_the_seed_and_listed_as_often_in_each_row():
    case = Case("prefill", "bf16", 1, 1, 1, 64, 500, 1000, causal=False, share=0.3, block_size=96)
    blocks = random_blocks(case, 0)
    assert blocks.shape == (6, 11) and (blocks.sum(1) == case.picked).all() and case.picked == 3
    assert (blocks == random_blocks(case, 0)).all() and (blocks != random_blocks(case, 1)).any()
    mask = forms.make_inputs(dataclasses.replace(case, seq_k=500), "cpu", seed=0).mask
    assert mask.shape == (500, 500) and not mask.all()


@pytest.mark.parametrize("dpas, status", [(0.31, "ok"), (0.28, "failed"), (0.35, "failed")])
def test_dpas_that_do_not_follow_the_density_fail(dpas, status):
    case = Case("prefill", "bf16", 1, 1, 1, 64, 1000, 1000, causal=False, share=0.3, block_size=100)
    (row,) = counted_blocks.expand([case], "bmg")

    def record(count):
        return SimpleNamespace(dpas=count, global_read=count, global_written=0, instructions=count, spill_bytes=0)

    found = counted_blocks.measured(row, {"flash_fwd": record(1000 * dpas)}, {"flash_fwd": record(1000)})
    assert found.status == status and found.density == 0.3 and found.dpas == dpas


@pytest.mark.parametrize(
    "words", [["--block-mask", "topk:0"], ["--block-mask", "topk:1.5"], ["--block-mask", "0.5"],
              ["--block-mask", "topk:0.5", "--block-size", "40"]],
)  # fmt: skip
def test_shares_and_sizes_that_no_block_has_are_refused(words, capsys):
    with pytest.raises(SystemExit):
        main(["bench", "attention", *words])
    assert "wanted, got" in capsys.readouterr().err


def test_a_tree_is_checked_and_beside_our_causal_call():
    inputs = forms.make_inputs(TREE, "cpu", seed=0)
    torchs = forms.torch_forms(TREE, inputs)
    assert check.check(TREE, inputs, forms.our_form(TREE, inputs), torchs["masked"]).ok
    assert not check.check(TREE, inputs, torchs["causal"], torchs["masked"]).ok
    result = BENCHMARK.run_case(TREE, Options(rounds=2))
    row = result.row
    assert (row.status, row.torch_form, row.plain_form) == ("ok", "masked", "masked")
    assert list(result.samples_ms) == ["xeflash", "masked", "causal"] and row.ratio and row.causal_ratio
    assert row.gbytes_per_s == pytest.approx(1e-6 * TREE.kv_bytes / row.median_ms) and row.threads


@pytest.mark.parametrize("case", GRADIENTS, ids=label)
def test_gradients_of_all_forms_agree(case):
    inputs = forms.make_inputs(case, "cpu", seed=0)
    plain = {**forms.torch_forms(case, inputs), "eager": forms.eager_form(case, inputs)}
    first, *others = (forms.timed_form(case, inputs, form) for form in plain.values())
    for other in others:
        for _ in range(2):  # a graph that is kept gives them again
            torch.testing.assert_close(other(), first(), rtol=0.02, atol=0.02 if case.dtype == "bf16" else 1e-5)


@pytest.mark.parametrize("case", GRADIENTS, ids=label)
def test_check_finds_each_wrong_gradient(case):
    inputs = forms.make_inputs(case, "cpu", seed=0)
    theirs = forms.timed_form(case, inputs, next(iter(forms.torch_forms(case, inputs).values())))
    assert check.check(case, inputs, theirs, theirs).ok
    for i in range(3):
        for change in (lambda x: x * 1.1, lambda x: x + float("nan"), torch.zeros_like):
            wrong = [change(x) if i == j else x for j, x in enumerate(theirs())]
            assert not check.check(case, inputs, lambda wrong=wrong: wrong, theirs).ok


def test_a_train_row_has_the_memory_of_a_step():
    n, tensor = 200, 200 * 2 * 64 * 4
    case = Case("train", "fp32", 1, 2, 2, 64, n, n, causal=True)
    row = BENCHMARK.run_case(case, Options(rounds=1)).row
    lse = n * 2 * 4
    assert 4 * tensor <= row.peak_bytes <= 4 * tensor + 2 * lse  # the output, and what q, k and v get
    assert row.peak_bytes <= row.torch_peak_bytes < row.eager_peak_bytes
    assert row.eager_peak_bytes > 3 * 2 * n * n * 4
    backward = BENCHMARK.run_case(dataclasses.replace(case, phase="backward"), Options(rounds=1)).row
    assert backward.status == "ok" and backward.peak_bytes is None


def test_eager_attention_that_does_not_fit_is_left_out(monkeypatch):
    monkeypatch.setattr(attention, "available_memory", lambda *_: 1000)  # that of the case is asked for elsewhere
    row = BENCHMARK.run_case(GRADIENTS[2], Options(rounds=1)).row
    assert row.status == "ok" and row.torch_peak_bytes and row.eager_peak_bytes is None


def test_peaks_of_memory_are_exact():
    def call():
        first, second = torch.empty(1000), torch.empty(500)
        del first
        return second, torch.empty(400)

    assert memory.peak_of(call, "cpu") == 4 * 1500


def test_peaks_of_memory_on_a_gpu_are_those_of_torch(monkeypatch):
    used = [700]
    monkeypatch.setattr(torch.xpu, "synchronize", lambda: None)
    monkeypatch.setattr(torch.xpu, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.xpu, "memory_allocated", lambda: used[0])
    monkeypatch.setattr(torch.xpu, "max_memory_allocated", lambda: used[0] + 20)
    assert memory.peak_of(lambda: used.__setitem__(0, 1000), "xpu") == 320


@pytest.mark.parametrize(
    "words, message",
    [
        (
            ["--phase", "backward,train", "--kv-len", "127,1k"],
            "--kv-len must be left out with --phase backward,train, got 127,1024",
        ),
        (["--phase", "prefill", "--kv-len", "127"], "--kv-len must be left out with --phase prefill, got 127"),
        (["--phase", "prefill", "--kv-dtype", "fp8"], "--kv-dtype must be left out with --phase prefill, got fp8"),
        (
            ["--dtype", "fp32", "--kv-dtype", "k8v4,bf16"],
            "--kv-dtype must be of 8 bits, that of --dtype, or k8v4 with 16 bits and a multiple of 64 as --head-dim, "
            "got k8v4,bf16",
        ),
        (["--phase", "decode", "--seq", "23"], "--seq must be left out with --phase decode, got 23"),
        (["--phase", "decode", "--no-causal"], "--no-causal must be left out with --phase decode"),
        (["--phase", "decode,verify", "--seq", "23"], "--seq must be left out with --phase decode,verify, got 23"),
        (
            ["--phase", "decode", "--block-mask", "topk:0.5"],
            "--block-mask must be left out with --phase decode, got 0.5",
        ),
        (["--block-mask", "topk:0.5", "--causal"], "--causal must be left out with --block-mask"),
        (["--block-size", "64"], "--block-size needs --block-mask, got 64 alone"),
        (["--device", "sim:bmg"], "--device sim:bmg needs --block-mask, whose work is counted"),
        (
            ["--device", "sim:bmg", "--block-mask", "topk:0.5", "--dtype", "fp32"],
            "--dtype must be of bf16, fp16 with --device sim:bmg: fp32 takes no dpas, got fp32",
        ),
        (
            ["--device", "sim:bmg", "--block-mask", "topk:0.5", "--phase", "train"],
            "--phase must be of prefill, backward with --device sim:bmg, got train",
        ),
        (["--tree", "8,32"], "--tree must be left out with --phase prefill,decode, got 8,32"),
        (["--phase", "verify", "--tree", "8,32", "--kv-len", "31"], "--tree must be at most --kv-len, got 32 and 31"),
        (
            ["--preset", "flux", "--phase", "train,decode"],
            "--phase must be of prefill, backward, train with --preset flux, got decode",
        ),
        (
            ["--preset", "sd15", "--causal"],
            "--causal must be left out with --preset sd15, where not all calls have as many keys as queries",
        ),
    ],
)
def test_what_no_phase_uses_is_refused(words, message, capsys):
    assert main(["bench", "attention", *words]) == 2
    assert f"bench: {message}\n" in capsys.readouterr().err


@pytest.mark.usefixtures("torch_as_ours")
def test_command_measures_gradients(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    file, picture = tmp_path / "out.csv", tmp_path / "out.png"
    words = [*ANY_PHASE, "--seq", "23", "--dtype", "fp32", "--phase", "backward,train", "--wide"]
    assert main(["bench", "attention", *words, "--output", str(file), "--plot", str(picture)]) == 0
    rows = [result.row for result in formats.from_csv(file.read_text(), BENCHMARK.layout)]
    assert [row.phase for row in rows] == ["backward", "train"] and rows[1].eager_peak_bytes > 0
    out = capsys.readouterr().out
    assert "### backward" in out and "| of eager |" in out and "7 products" in out
    assert picture.stat().st_size > 0


@pytest.mark.usefixtures("torch_as_ours")
@pytest.mark.parametrize("case", CASES, ids=label)
def test_case_gives_a_row_with_all_samples(case):
    result = BENCHMARK.run_case(case, Options(rounds=3))
    assert result.row.status == "ok"
    assert result.row.rounds == 3
    expected = {"sdpa"} if case.group == 1 else {"enable_gqa", "grouped" if case.phase == "decode" else "expand"}
    assert set(result.samples_ms) == {"xeflash", *expected}
    assert all(len(series) == 3 for series in result.samples_ms.values())


@pytest.mark.parametrize("error", [NotImplementedError("not yet"), ValueError("rule\nmore"), RuntimeError("build")])
def test_error_fails_the_row_only(monkeypatch, error):
    def our_form(case, inputs):
        raise error

    monkeypatch.setattr(forms, "our_form", our_form)
    results = list(BENCHMARK.run(CASES[:2], Options(rounds=1)))
    assert [r.row.status for r in results] == ["failed", "failed"]
    assert results[0].row.note == f"{type(error).__name__}: {str(error).splitlines()[0]}"


def test_too_large_case_is_skipped(monkeypatch):
    monkeypatch.setattr(runner, "available_memory", lambda *_: 1000)
    row = BENCHMARK.run_case(CASES[0], Options()).row
    assert row.status == "skipped"
    assert "are free" in row.note


@pytest.mark.usefixtures("torch_as_ours")
def test_command_writes_file_table_and_picture(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    file, picture = tmp_path / "out.json", tmp_path / "out.png"
    assert main(["bench", "attention", *SMALL, "--output", str(file), "--plot", str(picture)]) == 0
    data = json.loads(file.read_text())
    assert len(data["rows"]) == 2 + 2 and data["complete"] is True
    assert {"cpu", "isa", "packages", "command", "torch_threads", "device"} <= set(data["environment"])
    assert data["method"]
    assert "### prefill" in capsys.readouterr().out
    assert picture.stat().st_size > 0


@pytest.mark.usefixtures("torch_as_ours")
@pytest.mark.parametrize("name", ["md", "csv", "json", "jsonl"])
def test_command_writes_only_the_format_to_stdout(capsys, name):
    assert main(["bench", "attention", *DECODE, "--format", name, "--compare", "none"]) == 0
    out = capsys.readouterr().out
    assert out.startswith({"md": "### decode", "csv": "# cpu", "json": "{", "jsonl": "{"}[name])


def test_wrong_result_ends_with_1_and_says_so(monkeypatch, capsys):
    monkeypatch.setattr(forms, "our_form", lambda case, inputs: lambda: torch.zeros_like(inputs.q))
    assert main(["bench", "attention", *DECODE]) == 1
    captured = capsys.readouterr()
    assert "failed: wrong result" in captured.out
    assert "wrong result" in captured.err


def test_import_error_ends_with_2_and_points_to_doctor(monkeypatch, capsys):
    def our_form(case, inputs):
        raise ImportError("libsycl.so.9: cannot open shared object file")

    monkeypatch.setattr(forms, "our_form", our_form)
    assert main(["bench", "attention", *SMALL]) == 2
    assert "xeflash doctor" in capsys.readouterr().err


@pytest.mark.usefixtures("torch_as_ours")
def test_interrupt_keeps_what_was_measured(monkeypatch, capsys):
    real = runner.Benchmark.run_case
    seen = []

    def run_case(self, case, options):
        if seen:
            raise KeyboardInterrupt
        seen.append(case)
        return real(self, case, options)

    monkeypatch.setattr(runner.Benchmark, "run_case", run_case)
    assert main(["bench", "attention", *SMALL, "--format", "jsonl"]) == 130
    assert len(capsys.readouterr().out.splitlines()) == 1 + 1


@pytest.fixture
def signals():
    """Puts back what an interrupt changes; a SIGTERM that nobody takes fails the test, and does not end all of them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGTERM, lambda *_: pytest.fail("nobody takes SIGTERM"))
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("torch_as_ours", "signals")
@pytest.mark.parametrize("done", [0, 2])
def test_a_file_has_each_row_at_once_and_the_older_ones_until_then(monkeypatch, capsys, tmp_path, done):
    monkeypatch.setattr(bench_shared, "SECONDS", 0.0)
    file, real, states = tmp_path / "out.json", runner.Benchmark.run_case, []
    file.write_text('{"rows": [], "of": "an older run"}')

    def run_case(self, case, options):
        states.append(json.loads(file.read_text()))
        if len(states) > done:
            for _ in range(2):  # as `timeout` does
                os.kill(os.getpid(), signal.SIGTERM)
        return real(self, case, options)

    monkeypatch.setattr(runner.Benchmark, "run_case", run_case)
    assert main(["bench", "attention", *SMALL, "--output", str(file)]) == 130
    states.append(json.loads(file.read_text()))
    assert [len(state["rows"]) for state in states] == [*range(done + 1), done] and [*tmp_path.iterdir()] == [file]
    if done == 0:
        assert states[0] == states[-1]
    else:
        assert all(state["complete"] is False and state["environment"] for state in states[1:])
    where = f"; {file} has them" if done else ""
    assert capsys.readouterr().err.endswith(f"xeflash bench: interrupted; {done} of 4 cases{where}\n")


@pytest.mark.usefixtures("torch_as_ours")
def test_a_file_that_cannot_be_written_any_more_costs_no_table(monkeypatch, capsys, tmp_path):
    folder, real = tmp_path / "folder", runner.Benchmark.run_case
    folder.mkdir()

    def run_case(self, case, options):
        if folder.exists():
            folder.rmdir()
        return real(self, case, options)

    monkeypatch.setattr(runner.Benchmark, "run_case", run_case)
    assert main(["bench", "attention", *DECODE, "--output", str(folder / "out.json")]) == 2
    said = capsys.readouterr()
    assert f"--output could not be written: {folder / 'out.json'}: No such file" in said.err
    assert "### decode" in said.out and "out.json" not in said.out


def test_what_cannot_be_written_is_found_before_measuring(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(runner.Benchmark, "run_case", lambda *_: pytest.fail("measured"))
    assert main(["bench", "attention", *SMALL, "--output", "no/folder.json"]) == 2
    message = (
        "xeflash bench: --output must be a file that can be written, got no/folder.json: No such file or directory\n"
    )
    assert capsys.readouterr().err == message
    assert main(["bench", "attention", *SMALL, "--plot", "out.png"]) == 2
    assert "xeflash[bench]" in capsys.readouterr().err


@pytest.mark.usefixtures("torch_as_ours")
def test_peaks_reach_the_rows(monkeypatch, capsys):
    monkeypatch.setattr(peak, "_READ_BYTES", 64 << 20)
    words = [word for word in SMALL if word != "--no-peak"]
    assert main(["bench", "attention", *words, "--dtype", "fp32", "--format", "json"]) == 0
    data = json.loads(capsys.readouterr().out)
    arch = data["rows"][0]["arch"]
    assert {f"{arch} fp32 GFLOP/s", "memory GB/s", "memory GB/s of one thread"} <= set(data["peaks"])
    assert all(0 < row["percent_of_peak"] <= 100 for row in data["rows"])
    assert all(row["bound_by"] and row["peak"] > 0 and row["arch"] == arch for row in data["rows"])


def test_xpu_is_refused_where_there_is_none(monkeypatch, capsys):
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    assert main(["bench", "attention", *SMALL, "--device", "xpu"]) == 2
    assert "--device xpu needs" in capsys.readouterr().err
    assert runner.choose_device("auto") == "cpu"


def test_our_attention_passes_the_check_of_the_benchmark():
    for case in CASES + GRADIENTS:
        result = BENCHMARK.run_case(case, Options(rounds=1, compare_torch=False))
        row = result.row
        assert row.status == "ok", row.note
        if case.gradients:
            assert row.threads is row.percent_of_device is row.splits is row.partial_bytes is None
            continue
        cores = next(d["compute_units"] for d in _core.devices() if d["type"] == "cpu")
        assert row.percent_of_device == 100 * row.threads / (4 * cores)
        assert row.splits == 1 and row.partial_bytes == 0  # keys are few
