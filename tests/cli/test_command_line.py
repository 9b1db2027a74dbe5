"""Parsing of the console script, and the cases that its options give."""

import dataclasses
import os
import re
import subprocess
import sys

import pytest
from xeflash import cli
from xeflash.bench.cases import PRESETS, Case, Grid, expand, parse_choices, parse_size, parse_sizes
from xeflash.cli import bench_calls, bench_shared, build_parser, compile_command, main
from xeflash.tune import models


def parse(*words):
    return build_parser().parse_args(words)


def bench_cases(*words):
    return bench_calls.cases_of(parse("bench", "attention", *words))


@pytest.mark.parametrize(("text", "size"), [("1", 1), ("4096", 4096), ("4k", 4096), ("16K", 16384)])
def test_sizes_may_end_in_k(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "k", "1m", "1.5k", "one", "0k", "2147483649"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(ValueError, match=re.escape(repr(text))):
        parse_size(text)


def test_lists_are_split_at_commas():
    assert parse_sizes("1k, 2k,23") == (1024, 2048, 23)
    with pytest.raises(ValueError, match="got 'fp8'"):
        parse_choices("fp32,fp8", ("fp32", "bf16"))


def test_grid_expands_to_the_product_in_order():
    grid = Grid(("fp32", "bf16"), (1, 2), (8, 4), (4, 1), (64,), (23, 127))
    cases = expand("decode", grid)
    assert len(cases) == len(set(cases)) == 2 * 2 * 2 * 2 * 2
    assert cases[:2] == [
        Case("decode", "fp32", 1, 8, 4, 64, 1, 23, causal=False),
        Case("decode", "fp32", 1, 8, 4, 64, 1, 127, causal=False),
    ]


def test_prefill_has_as_many_kv_heads_as_heads_unless_told():
    (case,) = expand("prefill", Grid(("fp32",), (1,), (6,), (), (64,), (100,)))
    assert (case.kv_heads, case.seq_q, case.seq_k, case.causal) == (6, 100, 100, True)


def test_heads_that_are_no_multiple_are_refused():
    with pytest.raises(ValueError, match="multiple of --kv-heads, got 8 and 3"):
        expand("decode", Grid(("fp32",), (1,), (8,), (3,), (64,), (100,)))
    assert main(["bench", "attention", "--heads", "8", "--kv-heads", "3"]) == 2


def test_counts_of_a_case():
    full = Case("prefill", "bf16", 2, 8, 4, 64, 100, 100, causal=False)
    assert full.flops == 4 * 2 * 8 * 100 * 100 * 64
    assert Case("prefill", "bf16", 2, 8, 4, 64, 100, 100, causal=True).flops == full.flops / 2
    assert dataclasses.replace(full, phase="backward").flops == 2.5 * full.flops
    assert dataclasses.replace(full, phase="train").flops == 3.5 * full.flops
    assert full.kv_bytes == 2 * 2 * 4 * 100 * 64 * 2
    assert full.memory_bytes > full.kv_bytes


def test_presets_give_the_cases_of_their_grids():
    assert len(bench_cases()) == 8 + 8
    assert len(bench_cases("--preset", "full")) == 18 + 36
    for preset in PRESETS.values():
        for phase, grids in preset.items():
            assert {case.phase for grid in grids for case in expand(phase, grid)} == {phase}


def test_presets_of_image_models_have_their_layers():
    assert [case.label for case in bench_cases("--preset", "sdxl")] == [
        f"prefill fp16 B2 H{heads}/{heads} D64 {length}x{keys or length}"
        for keys in (None, 77)
        for heads, length in ((10, 4096), (20, 1024))
    ]
    (flux,) = bench_cases("--preset", "flux", "--phase", "train", "--dtype", "fp32")
    assert flux == Case("train", "fp32", 1, 24, 24, 128, 4608, 4608, causal=False)
    assert {case.head_dim for case in bench_cases("--preset", "sd15")} == {40, 80, 160}


def test_options_replace_the_preset():
    cases = bench_cases("--phase", "prefill", "--dtype", "fp16", "--seq", "23,1k", "--head-dim", "80", "--no-causal")
    assert cases == [Case("prefill", "fp16", 1, 8, 8, 80, n, n, causal=False) for n in (23, 1024)]


def test_given_heads_do_not_keep_the_kv_heads_of_the_preset():
    assert {case.kv_heads for case in bench_cases("--phase", "decode", "--heads", "12")} == {12}


def test_lengths_belong_to_their_phase():
    cases = bench_cases("--seq", "100", "--kv-len", "200")
    assert {case.seq_k for case in cases if case.phase == "prefill"} == {100}
    assert {case.seq_k for case in cases if case.phase == "decode"} == {200}


def test_a_tree_is_verified_on_each_length_of_a_cache():
    words = ("--phase", "verify,decode", "--dtype", "fp16", "--kv-heads", "8", "--heads", "32", "--kv-len", "40,1k")
    cases = bench_cases(*words, "--tree", "3,40")
    assert [(case.phase, case.seq_q, case.seq_k) for case in cases] == [
        *(("verify", nodes, keys) for keys in (40, 1024) for nodes in (3, 40)),
        ("decode", 1, 40),
        ("decode", 1, 1024),
    ]
    assert {case.seq_q for case in bench_cases("--phase", "verify")} == {8, 32}


def test_types_of_a_cache_are_those_that_its_calls_can_have():
    words = ("--phase", "decode,prefill", "--heads", "4", "--kv-len", "23", "--seq", "23", "--head-dim", "64,96")
    cases = bench_cases(*words, "--dtype", "fp32,bf16", "--kv-dtype", "bf16,fp8,k8v4")
    found = {(case.dtype, case.head_dim, case.kv_dtype): case.kv_bytes for case in cases if case.phase == "decode"}
    assert found == {
        ("fp32", 64, "fp8"): 4 * 23 * 2 * (64 + 4),
        ("fp32", 96, "fp8"): 4 * 23 * 2 * (96 + 4),
        ("bf16", 64, "bf16"): 4 * 23 * 2 * 2 * 64,
        ("bf16", 64, "fp8"): 4 * 23 * 2 * (64 + 4),
        ("bf16", 64, "k8v4"): 4 * 23 * (64 + 4 + 32 + 2),
        ("bf16", 96, "bf16"): 4 * 23 * 2 * 2 * 96,
        ("bf16", 96, "fp8"): 4 * 23 * 2 * (96 + 4),
    }
    assert {case.kv_dtype for case in cases if case.phase == "prefill"} == {""}


def test_gradients_have_the_lengths_and_the_mask_of_prefill():
    cases = bench_cases("--phase", "backward,train", "--dtype", "fp16", "--seq", "23", "--head-dim", "80")
    assert cases == [Case(phase, "fp16", 1, 8, 8, 80, 23, 23, causal=True) for phase in ("backward", "train")]


def test_repeated_choices_are_measured_once():
    once = bench_cases("--phase", "decode", "--dtype", "fp32")
    assert bench_cases("--phase", "decode,decode", "--dtype", "fp32,fp32") == once


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], "md"),
        (["--format", "json"], "json"),
        (["--output", "a.csv"], "csv"),
        (["--output", "a.txt"], "md"),
        (["--output", "a.csv", "--format", "jsonl"], "jsonl"),
    ],
)
def test_format_comes_from_the_option_or_the_suffix(words, name):
    assert bench_shared.format_of(parse("bench", "attention", *words)) == name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["bench", "attention", "--seq", "1k,x"], "'x'"),
        (["bench", "attention", "--dtype", "fp64"], "choose from fp32, bf16, fp16, got 'fp64'"),
        (["bench", "attention", "--rounds", "0"], "'0'"),
        (["compile"], "--model-shapes"),
        (["compile", "--model-shapes", "llama-9"], "got 'llama-9'"),
        ([], "COMMAND"),
    ],
)
def test_wrong_words_end_with_their_error(capsys, words, message):
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_threads_are_set_for_both_pools(monkeypatch):
    for name in ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "DPCPP_CPU_NUM_CUS"):
        monkeypatch.setenv(name, "unset")  # so that monkeypatch puts the old state back
        monkeypatch.delenv(name)
    bench_shared.prepare_threads(2)
    assert [os.environ[n] for n in ("OMP_WAIT_POLICY", "OMP_NUM_THREADS", "DPCPP_CPU_NUM_CUS")] == [
        "passive",
        "2",
        "2",
    ]
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    bench_shared.prepare_threads(None)
    assert os.environ["OMP_WAIT_POLICY"] == "active"


def test_compile_hands_its_arguments_over(monkeypatch):
    seen = []

    class Jit:
        @staticmethod
        def compile_command(arguments):
            seen.append(arguments)

    monkeypatch.setattr(compile_command.importlib, "import_module", lambda name: Jit)
    words = [
        "compile",
        "--model-shapes",
        "llama-3-8b,gpt-2",
        "--device",
        "pvc",
        "--dtype",
        "bf16,fp16",
        "--jobs",
        "2",
    ]
    assert main(words) == 0
    (arguments,) = seen
    assert arguments.model_shapes == ("llama-3-8b", "gpt-2")
    assert (arguments.device, arguments.dtype, arguments.jobs) == ("pvc", ("bf16", "fp16"), 2)
    assert parse("compile", "--model-shapes", "all").model_shapes == tuple(models.SHAPES)


@pytest.mark.parametrize("name", models.SHAPES)
def test_model_shapes_are_possible(name):
    for shape in models.SHAPES[name]:
        assert shape.heads_q % shape.heads_k == 0
        assert shape.features
        assert all(f.causal or f.window_size == (-1, -1) for f in shape.features)


def test_an_interrupt_while_commands_are_imported_ends_quietly(monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "build_parser", interrupted)
    assert main(["doctor"]) == 130
    script = "import sys, xeflash.cli; print([name for name in sys.modules if name.startswith('xeflash.cli.')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"  # they are imported where an interrupt is expected


def test_version_is_printed(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("xeflash ")
