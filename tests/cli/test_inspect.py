"""`xeflash inspect`: the machine code of a kernel, as a table and as JSON."""

import json
from pathlib import Path

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
