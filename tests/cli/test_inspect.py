"""`xeflash inspect`: the machine code of a kernel and how a call is shared out, as tables and as JSON."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from xeflash.cli import main
from xeflash.jit.kernel import render
from xeflash.jit.offline import compile_offline
from xeflash.sim.binary import compile_spirv
from xeflash.tune.desc import Desc

DESC = Desc("flash_fwd", "pvc", "float16", 64, 64, 16, access="block2d")


@pytest.fixture(scope="module")
def spirv(ocloc: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("inspect") / "kernel.spv"
    path.write_bytes(compile_offline(render(DESC)).binary)
    return path


STEP = ["--call", "decode", "--heads", "32", "--kv-heads", "2", "--kv-len", "4k"]


def call_of(capsys: pytest.CaptureFixture[str], device: str, *words: str) -> dict[str, Any]:
    assert main(["inspect", "--device", device, *words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["kernels"] == []
    return printed["call"]


def test_a_call_is_shared_out_over_a_device_that_is_not_here(capsys: pytest.CaptureFixture[str]) -> None:
    call = call_of(capsys, "bmg", *STEP)
    assert (call["compute_units"], call["device_threads"]) == (160, 640)
    main_launch, merging = call["launches"]
    assert main_launch["kernel"].startswith("bmg-flash_decode-bfloat16-d128")
    assert main_launch["threads"] == main_launch["groups"] * main_launch["threads_of_group"]
    assert main_launch["percent_of_device"] == 100 * main_launch["threads"] / 640
    assert (merging["entry"], merging["threads"], merging["waves"]) == ("combine", 32, 1)
    floats_per_head = -(-call["splits"] * (128 + 2) // 16) * 16  # floats: O, m and l of each split, in whole lines
    assert call["splits"] > 1 and call["partial_bytes"] == 4 * 32 * floats_per_head
    assert call_of(capsys, "pvc", *STEP)["compute_units"] == 512
    more = call_of(capsys, "pvc", *STEP, "--units", "448")
    assert (more["compute_units"], more["device_threads"]) == (448, 4 * 448)


def test_a_call_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "--device", "bmg", *STEP]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for words in (
        "decode bf16 B1 H32/2 D128 1x4096",
        "combine 32 1 32 5 %",
        "bmg: 160 compute units",
        "kB of partial results",
    ):
        assert words in printed
    words = ["--call", "prefill", "--heads", "8", "--seq", "1k", "--no-causal", "--dtype", "fp16", "--units", "2"]
    assert main(["inspect", "--device", "cpu", *words]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "prefill fp16 B1 H8/8 D128 1024x1024 launch" in printed
    assert "work for 8 threads" in printed and "keys are not split" in printed


def test_the_page_shows_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    page = (Path(__file__).parents[2] / "perf" / "README.md").read_text()
    command, _, shown = page.split("\n$ xeflash ")[1].split("```")[0].partition("\n")
    assert main(command.split()) == 0
    assert capsys.readouterr().out.split() == shown.split()


def test_gradients_have_a_launch_for_each_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    call = call_of(capsys, "dg2", "--call", "backward", "--heads", "4", "--head-dim", "64", "--seq", "256")
    assert [launch["entry"] for launch in call["launches"]] == ["flash_bwd_dq", "flash_bwd_dkv"]


def run_of(*words: str) -> str:
    """In a process of its own: SYCL looks for devices once."""
    command = [sys.executable, "-m", "xeflash", "inspect", *words, "--executed"]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=280).stdout


PROMPT = ["--device", "bmg", "--call", "prefill", "--heads", "16", "--head-dim", "64", "--seq", "320", "--no-causal"]


@pytest.mark.usefixtures("ocloc")
def test_what_a_call_executed() -> None:
    (launch,) = json.loads(run_of(*PROMPT, "--json"))["call"]["executed"]
    assert launch["kernel"] == "flash_fwd" and launch["spilled"] == 0
    assert sum(launch["mix"].values()) == launch["instructions"]
    # 16 rows by 32 keys, 4 steps of S = Q K^T and as many columns of O += P V, each for 2 halves of rows and of keys
    assert launch["loop_mix"]["dpas"] == 32
    assert launch["mix"]["dpas"] == 16 * 320 // 16 * 320 // 32 * 32, "all dpas are those of the loop"
    once = sum(launch["loop_mix"].values())
    assert 32 < once <= launch["loop_instructions"] < 2 * once, "what runs now and then counts as often as it does"
    assert launch["clocks"] > once and 0 < sum(launch["waits"].values()) < launch["clocks"]
    assert launch["longest"][0]["clocks"] == max(line["clocks"] for line in launch["longest"])


@pytest.mark.usefixtures("ocloc")
def test_what_gradients_executed_is_a_table_for_each_kernel() -> None:
    words = ["--device", "dg2", "--call", "backward", "--heads", "1", "--head-dim", "64", "--seq", "64"]
    printed = run_of(*words)
    for expected in (
        "flash_bwd_dq",
        "flash_bwd_dkv",
        "main loop, of a pass",
        "a thread alone:",
        "SBID of",
        "in flight",
    ):
        assert expected in printed


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--device", "bmg"], "/bmg-*/kernel.bin, or a call by --call"),
        (["--device", "bmg", "--heads", "3"], "name a KERNEL, which is one of "),
        (["--device", "cpu", "kernel.bin"], "--device must be one of pvc, "),
        (["--device", "bmg", "kernel.bin", "--kv-len", "3"], "--kv-len must be left out without --call, got 3"),
        (["--device", "bmg", *STEP, "--options=-g"], "--options must be left out without a KERNEL"),
        (["--device", "bmg", *STEP, "--seq", "3"], "--seq must be left out with --call decode, got 3"),
        (["--device", "bmg", *STEP, "--no-causal"], "--causal must be left out with --call decode"),
        (["--device", "mtl-h", *STEP], "--device must be one that has kernels"),
        (["--device", "bmg", *STEP, "--head-dim", "59"], "must be a multiple of 8"),
        (["--device", "bmg", *STEP, "--kv-heads", "5"], "must divide query.heads"),
        (["--device", "bmg", "kernel.bin", "--executed"], "--executed must go with --call and a simulated --device"),
        (["--device", "cpu", *STEP, "--executed"], "--executed must go with --call and a simulated --device"),
        (["--device", "bmg", *STEP, "--units", "3", "--executed"], "--executed must go with"),
    ],
)
def test_what_is_no_call_ends_with_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", *words]) == 2
    assert message in capsys.readouterr().err


def test_spirv_is_compiled_and_counted(spirv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(spirv), "--device", "pvc", "--json"]) == 0
    (kernel,) = json.loads(capsys.readouterr().out)
    assert kernel["name"] == "__sycl_kernel_flash_fwd"
    assert kernel["grf"] == 256 and kernel["simd"] == 1 and kernel["scratch"] == 0
    # 8 rows x 64 keys, head dim 64: 4 x 4 for S = Q K^T and as many for O += P V
    assert kernel["loop"]["dpas"] == 32
    assert kernel["loop"]["opcodes"]["dpas"] == 32
    assert any("load_block2d" in name for name in kernel["loop"]["messages"])
    classes = ("dpas", "math", "moves", "float_alu", "integer_alu", "control", "sync", "sends")
    for mix in (kernel["all"], kernel["loop"]):
        assert sum(mix[name] for name in classes) == mix["instructions"]
    assert kernel["first_unknown"] == ""


def test_native_binary_gives_the_same(spirv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    binary = tmp_path / "kernel.bin"
    binary.write_bytes(compile_spirv("pvc", spirv.read_bytes(), "-vc-codegen -doubleGRF"))
    outputs = []
    for path in (spirv, binary):
        assert main(["inspect", str(path), "--device", "pvc"]) == 0
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    for word in ("main loop", "dpas", "integer ALU", "256 registers", "spills 0 B"):
        assert word in outputs[0]
    assert main(["inspect", str(binary), "--device", "pvc", *STEP]) == 0
    both = capsys.readouterr().out
    assert "flash_decode" in both and both.endswith(outputs[0])


@pytest.mark.parametrize("content", (b"", b"text", b"\x7fELF" + bytes(60)))
def test_other_files_are_refused(
    content: bytes, spirv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert main(["inspect", str(path), "--device", "bmg"]) == 1
    assert str(path) in capsys.readouterr().err


def test_binary_of_another_device_is_refused(spirv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "kernel.bin"
    path.write_bytes(compile_spirv("pvc", spirv.read_bytes(), "-vc-codegen -doubleGRF"))
    assert main(["inspect", str(path), "--device", "dg2"]) == 1
    assert "dg2" in capsys.readouterr().err
