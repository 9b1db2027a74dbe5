"""SIMT kernels: what they leave behind on simulated GPUs against the OpenCL CPU device, another compiler's machine code."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import find_sycl
from cover import few

pytestmark = pytest.mark.usefixtures("ocloc")
HERE = Path(__file__).parent
DEVICES = ["pvc", "bmg", "dg2"]
NAMES = """
divergent_loops switches calls divisions wide_integers bits_and_bytes private_arrays many_live_values
local_memory atomics work_group_functions work_group_votes sub_groups_16 sub_groups_32 range_1d range_2d range_3d
conversions"""
INTEGER = NAMES.split()
FLOAT = ["float_arithmetic", "float_functions"]
ITEMS, INPUTS = 1023, 4096

# Largest errors of SYCL's functions in units of the last place, and what math results may be moved by on top.
ARITHMETIC = {"fma": 0, "divide": 2.5, "sqrt": 3, "rounded": 0, "minmax": 0, "ldexp": 0, "fmod": 0, "select": 0}
FUNCTIONS = {"exp": 3, "log": 3, "sin": 4, "cos": 4, "exp2": 3, "rsqrt": 2, "pow": 16, "tanh": 5}
MOVED = 8


@pytest.fixture(scope="session")
def program(tmp_path_factory) -> Path:
    include, lib = find_sycl()
    path = tmp_path_factory.mktemp("simt") / "simt_program"
    command = ["g++", "-std=c++17", "-w", "-DSYCL_DISABLE_FSYCL_SYCLHPP_WARNING", f"-I{include}"]
    command += [str(HERE / "simt_program.cpp"), "-o", str(path), f"-L{lib}", "-lsycl", f"-Wl,-rpath,{lib}"]
    subprocess.run(command, check=True)
    return path


def read(folder: Path) -> dict[str, np.ndarray | str]:
    return {p.stem: p.read_text() if p.suffix else np.fromfile(p, np.uint32) for p in sorted(folder.iterdir())}


def on_cpu(simulated, program, source: str, kernels: list[str], folder: Path):
    environment = simulated.environment()
    driver = Path(sys.prefix, "lib", "libintelocl.so")
    if driver.exists():
        environment.setdefault("OCL_ICD_FILENAMES", str(driver))
    command = [str(program), str(HERE / source), str(folder), "cpu", *kernels]
    done = simulated.run(command, environment, status=None)
    if done.returncode:
        pytest.skip(f"no OpenCL CPU device: {done.stderr[-300:]}")
    return read(folder)


def on_gpu(simulated, program, device: str, source: str, kernels: list[str], folder: Path, check: str = "all"):
    arguments = [str(HERE / source), str(folder), "gpu", *kernels]
    done = simulated.program(program, arguments, device, check=check)
    return read(folder) | {"stderr": done.stderr}


@pytest.fixture(scope="session")
def truth(simulated, program, tmp_path_factory):
    return on_cpu(simulated, program, "simt_kernels.cpp", INTEGER + FLOAT, tmp_path_factory.mktemp("cpu"))


@pytest.fixture(scope="session", params=DEVICES)
def results(request, simulated, program, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return on_gpu(simulated, program, request.param, "simt_kernels.cpp", INTEGER + FLOAT, folder)


def get(results, kernel: str) -> np.ndarray:
    assert isinstance(results.get(kernel), np.ndarray), f"{results.get(kernel)}\n{results['stderr'][-2000:]}"
    return results[kernel]


@pytest.mark.parametrize("kernel", INTEGER)
def test_bits_equal_the_cpu_device(results, truth, kernel):
    got, want = get(results, kernel), get(truth, kernel)
    wrong = np.flatnonzero(got != want)
    assert wrong.size == 0, (
        f"{wrong.size} words, first at {wrong[0]}: got {got[wrong[0]]:08x}, want {want[wrong[0]]:08x}"
    )
    assert np.count_nonzero(want) > 10


def inputs() -> np.ndarray:
    """simt_program.cpp's random words."""
    state, words = 12345, []
    for _ in range(INPUTS):
        state = (state * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        words.append(state >> 32)
    return np.array(words, np.uint32)


def moderate(words: np.ndarray) -> np.ndarray:
    bits = (words & 0x807FFFFF) | (119 + (words >> 23 & 15)) << 23
    return bits.astype(np.uint32).view(np.float32).astype(np.float64)


def errors(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """In units of the last place of the exact value."""
    with np.errstate(divide="ignore"):
        exponent = np.floor(np.log2(np.abs(want)))
    return np.abs(got.astype(np.float64) - want) / np.exp2(np.clip(exponent, -126, 127) - 23)


def check_columns(got: np.ndarray, want: dict[str, np.ndarray], limits: dict[str, float], moved: float) -> None:
    columns = got[: 8 * ITEMS].view(np.float32).reshape(ITEMS, 8)
    for i, (name, limit) in enumerate(limits.items()):
        error = errors(columns[:, i], want[name])
        allowed = limit + 0.5 + (moved if limit else 0)
        worst = int(error.argmax())
        assert error[worst] <= allowed, (
            f"{name}: {error[worst]:.3g} ulp at {worst}, {columns[worst, i]} for {want[name][worst]}"
        )


def test_float_arithmetic(results):
    words = inputs()
    a, b, c = (moderate(words[k : k + ITEMS]) for k in range(3))
    want = {
        "fma": a * b + c,
        "divide": a / b,
        "sqrt": np.sqrt(np.abs(a)),
        "rounded": np.floor(a) + np.rint(b) * np.trunc(c),
        "minmax": np.maximum(a, b) - np.minimum(b, c),
        "ldexp": np.ldexp(a, (words[:ITEMS] & 15).astype(np.int32) - 8),
        "fmod": np.fmod(a, b),
        "select": np.where(a < b, np.copysign(c, a), np.where(a > c, b, -b)),
    }
    check_columns(get(results, "float_arithmetic"), want, ARITHMETIC, MOVED)


def test_float_functions(results):
    words = inputs()
    a, b = moderate(words[:ITEMS]), np.abs(moderate(words[1 : ITEMS + 1]))
    want = {
        "exp": np.exp(a * 0.25),
        "log": np.log(b),
        "sin": np.sin(a),
        "cos": np.cos(a),
        "exp2": np.exp2(a * 0.125),
        "rsqrt": 1 / np.sqrt(b),
        "pow": b ** (a * 0.0625),
        "tanh": np.tanh(a),
    }
    check_columns(get(results, "float_functions"), want, FUNCTIONS, MOVED)


@pytest.mark.parametrize("device", few(["pvc", "bmg"], "pvc"))
def test_doubles_equal_the_cpu_device(simulated, program, tmp_path, device):
    folders = [tmp_path / name for name in ("cpu", "gpu")]
    for folder in folders:
        folder.mkdir()
    want = on_cpu(simulated, program, "simt_doubles.cpp", ["doubles"], folders[0])
    got = on_gpu(simulated, program, device, "simt_doubles.cpp", ["doubles"], folders[1])
    assert (get(got, "doubles") == get(want, "doubles")).all()


@pytest.mark.parametrize("seed", few([1, 2], 1))
@pytest.mark.parametrize("device", few(DEVICES, "bmg"))
def test_other_orders_of_threads_give_the_same(simulated, program, truth, tmp_path, device, seed):
    kernels = ["atomics", "local_memory", "work_group_functions"]
    got = on_gpu(simulated, program, device, "simt_kernels.cpp", kernels, tmp_path, check=f"all,seed={seed}")
    for kernel in kernels:
        assert (get(got, kernel) == get(truth, kernel)).all(), kernel
