"""`xeflash compile` fills what a run finds, and can be interrupted."""

import functools
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from xeflash import _core
from xeflash.call.schema import BSHD
from xeflash.jit import prebuilt, precompile
from xeflash.jit.calls import kernels_of as calls_kernels
from xeflash.jit.kernel import render
from xeflash.runtime.interop import Placeholder
from xeflash.tune import xe
from xeflash.tune.models import SHAPES

provide = importlib.import_module("xeflash.jit.provide")  # the package has the function under this name

MODEL = "phi-3-mini"  # its head dim is not among the wheel's kernels

# What the layers of the model do for prompts of 20, 50 and 70 tokens, one of 20 after 580 others, a query of one, and new
# keys, and with "training" the gradients of the prompts; then prints how often a kernel was compiled from source, and how
# often device code was translated.
RUN = """
import json, sys
import torch, xeflash
from xeflash import _core
from xeflash.tune import models
from arrays import to_array

kind, dtype, shape = sys.argv[1], getattr(torch, sys.argv[2]), models.SHAPES[sys.argv[3]][0]
xeflash.attention  # loads the extension
counts = {}
def counted(name):
    function = getattr(_core, name)
    def run(*args):
        counts[name] += 1
        return function(*args)
    counts[name] = 0
    setattr(_core, name, run)
counted("compile_source"), counted("compile_spirv")

def rows(length, heads):
    return torch.zeros(1, length, heads, shape.head_dim, dtype=dtype)
def arrays(length, keys):
    return [to_array(rows(*n), kind) for n in ((length, shape.heads_q), (keys, shape.heads_k), (keys, shape.heads_k))]
for length, keys in ((20, 20), (50, 50), (70, 70), (20, 600)):
    xeflash.flash_attn_func(*arrays(length, keys), causal=True)
    if "training" in sys.argv:
        q, k, v = (x.requires_grad_() for x in arrays(length, keys))
        xeflash.flash_attn_func(q, k, v, causal=True).sum().backward()
new = [to_array(rows(1, shape.heads_k), kind) for _ in range(2)]
xeflash.flash_attn_with_kvcache(*arrays(1, 30), *new, cache_seqlens=20, causal=True)
print(json.dumps(counts))
"""


WHEEL = """
import torch, xeflash
from xeflash import _core
from arrays import to_array

def refuse(*args):
    raise SystemExit("compiled from source")
xeflash.attention  # loads the extension
_core.compile_source = refuse
x = to_array(torch.zeros(1, 100, 8, 128, dtype=torch.bfloat16), "usm")
xeflash.flash_attn_func(x, x, x, causal=True)
"""


def environment(folder):
    tests = Path(__file__).parents[1]
    return os.environ | {"XEFLASH_CACHE_DIR": str(folder), "PYTHONPATH": str(tests)}


def command(device, model=MODEL, *options):
    words = ["compile", "--model-shapes", model, "--device", device, "--dtype", "fp16", "--jobs", "2", *options]
    return [sys.executable, "-m", "xeflash", *words]


def compile_for(device, folder, *options):
    done = subprocess.run(command(device, MODEL, *options), env=environment(folder), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def compilations_of_a_run(kind, folder, *options):
    words = [sys.executable, "-c", RUN, kind, "float16", MODEL, *options]
    done = subprocess.run(words, env=environment(folder), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def entries(folder):
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


@pytest.mark.wide
@pytest.mark.gpu
def test_a_run_finds_the_device_code_of_a_gpu_that_was_not_there(gpu_family, tmp_path):
    before = compilations_of_a_run("usm", tmp_path / "empty")
    assert before["compile_source"] > 0 and before["compile_spirv"] == 0
    text = compile_for(gpu_family, tmp_path / "filled")
    assert "device code" in text.splitlines()[-1]
    first = compilations_of_a_run("usm", tmp_path / "filled")
    assert first == {"compile_source": 0, "compile_spirv": before["compile_source"]}
    assert set(compilations_of_a_run("usm", tmp_path / "filled").values()) == {0}  # native code was kept


@pytest.mark.wide
@pytest.mark.gpu
def test_a_run_finds_the_native_code_of_the_gpu_at_hand(gpu_family, tmp_path):
    assert "native code" in compile_for("xpu", tmp_path).splitlines()[-1]
    assert set(compilations_of_a_run("usm", tmp_path).values()) == {0}


@pytest.mark.wide
def test_a_run_finds_the_native_code_of_the_cpu(tmp_path):
    assert compilations_of_a_run("torch", tmp_path / "empty")["compile_source"] > 0
    compile_for("cpu", tmp_path / "filled")
    assert set(compilations_of_a_run("torch", tmp_path / "filled").values()) == {0}


@pytest.mark.long
def test_a_run_finds_the_code_of_gradients(tmp_path):
    compile_for("cpu", tmp_path)
    assert compilations_of_a_run("torch", tmp_path, "training")["compile_source"] > 0
    compile_for("cpu", tmp_path, "--training")
    assert set(compilations_of_a_run("torch", tmp_path, "training").values()) == {0}


def test_devices_share_the_code_of_their_architecture(tmp_path, monkeypatch):
    from xeflash.cli import main
    from xeflash.jit import cache, offline

    monkeypatch.setenv("XEFLASH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(offline.Compilers, "compile", lambda self, kernel: cache.Built(kernel.text.encode(), ""))
    kept = {}
    for name, arch in xe.DEVICES.items():
        before = entries(tmp_path)
        assert main(command(name)[3:]) == 0
        kept.setdefault(arch, []).append(len(entries(tmp_path)) - len(before))
    assert all(first > 0 and not any(others) for first, *others in kept.values())


def test_every_simulated_device_may_be_named():
    sim = pytest.importorskip("xeflash.sim")
    assert set(sim.DEVICES) - {"mtl-h"} == set(xe.DEVICES)  # that one has no matrix unit, and so no kernels
    assert set(xe.DEVICES.values()) == set(xe.ARCHITECTURES)


@pytest.mark.parametrize("device", ["pvc", "cpu"])
def test_an_interrupt_ends_the_compilers_and_leaves_nothing_half_written(tmp_path, device):
    cache, scratch = tmp_path / "cache", tmp_path / "scratch"
    scratch.mkdir()
    process = subprocess.Popen(
        command(device, ",".join(SHAPES)),
        env=environment(cache) | {"TMPDIR": str(scratch)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    threads = Path(f"/proc/{process.pid}/task")
    deadline = time.monotonic() + 60
    children = []
    while time.monotonic() < deadline and not (children and any(scratch.iterdir())):
        children = [child for thread in threads.iterdir() for child in (thread / "children").read_text().split()]
        time.sleep(0.01)
    assert children
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in errors and "interrupted" in errors
    assert not [child for child in children if Path(f"/proc/{child}").exists()]
    assert not list(scratch.iterdir())
    assert all(not path.is_dir() for path in cache.iterdir() if path.name.startswith("."))  # locks only


def test_a_kernel_that_does_not_compile_fails_the_command(tmp_path, monkeypatch, capsys):
    from xeflash.cli import main
    from xeflash.jit import offline

    monkeypatch.setenv("XEFLASH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(offline.Compilers, "_run", lambda self, words: (1, "error: no such thing\n"))
    assert main(["compile", "--model-shapes", MODEL, "--device", "dg2", "--dtype", "fp16"]) == 1
    output = capsys.readouterr()
    assert "error: no such thing" in output.err and "0 kernels" in output.out
    assert not entries(tmp_path)


@pytest.mark.parametrize("what", ["file", "open to all"])
def test_nothing_is_compiled_for_a_cache_that_cannot_be_used(tmp_path, monkeypatch, capsys, what):
    from xeflash.cli import main

    cache = tmp_path / "cache"
    if what == "file":
        cache.write_text("")
    else:
        cache.mkdir()
        cache.chmod(0o777)
    monkeypatch.setenv("XEFLASH_CACHE_DIR", str(cache))
    assert main(["compile", "--model-shapes", MODEL, "--device", "dg2"]) == 2
    said = capsys.readouterr()
    assert str(cache) in said.err and "XEFLASH_CACHE_DIR" in said.err and not said.out
    assert what == "file" or not list(cache.iterdir())


def test_xpu_needs_a_gpu(monkeypatch, capsys):
    from xeflash import _core
    from xeflash.cli import main

    monkeypatch.setattr(
        _core,
        "devices",
        lambda: [
            {
                "name": "a CPU",
                "backend": "opencl",
                "type": "cpu",
                "arch": "x",
                "driver": "1",
                "usm_system_allocations": True,
            }
        ],
    )
    assert main(["compile", "--model-shapes", MODEL, "--device", "xpu"]) == 2
    assert "a CPU" in capsys.readouterr().err


@pytest.mark.wide
@pytest.mark.gpu
def test_prompts_of_usual_models_run_by_the_wheels_kernels(gpu, tmp_path):
    done = subprocess.run([sys.executable, "-c", WHEEL], env=environment(tmp_path), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# ---- image models --------------------------------------------------------------------------------

IMAGES = {40: 4096, 80: 1024, 160: 256}  # head dims of Stable Diffusion 1.5, and their queries at 512 x 512


@pytest.mark.parametrize("keys", ["self", "text"])
@pytest.mark.parametrize(("arch", "units", "dtype"), [
    ("bmg", 20, "float16"), ("dg2", 32, "bfloat16"), ("pvc", 128, "float16"), ("cpu-avx512-bf16", 8, "float32"),
])  # fmt: skip
def test_wheels_carry_the_kernels_of_stable_diffusion(arch, units, dtype, keys):
    carried = {(kernel.name, kernel.text) for kernel in map(render, prebuilt.default_set(release=True))}
    for dim, queries in IMAGES.items():
        q, k = (Placeholder((2, rows, 8, dim), dtype) for rows in (queries, queries if keys == "self" else 77))
        call = functools.partial(_core.forward, q=q, k=k, v=k, function="test", layout=BSHD)
        asked = [provide.source_of(desc) for desc in calls_kernels(call, arch, units, "", "")]
        assert asked and {(kernel.name, kernel.text) for kernel in asked} <= carried


def test_compile_knows_all_head_dims_of_a_model_and_that_images_have_no_new_tokens():
    choices = (("float16",), ("dense", "paged"), 16, 1, False)
    descs = [desc for desc, _ in precompile.kernels_of("test", SHAPES["sd15"], precompile.Target("bmg"), *choices)]
    assert {desc.head_dim for desc in descs} == set(IMAGES)
    assert {desc.algorithm for desc in descs} == {"flash_fwd"}
