"""How calls on the CPU are shared out over many cores: a process pretends to have them, and SYCL tells its launches."""

import os
import re
import subprocess
import sys

import pytest
from xeflash import _core
from xeflash.bench.cases import Case
from xeflash.bench.shares import call_of
from xeflash.call.schema import BSHD
from xeflash.jit.calls import shares_of
from xeflash.jit.precompile import target
from xeflash.runtime.interop import Placeholder

PROGRAM = """
import sys
import torch, xeflash
from xeflash.runtime import extension
extension.load()
from xeflash import _core
_core.pretend_cores(int(sys.argv[1]))

def tensors(heads, rows, count=3):
    return (torch.randn(1, heads, rows, 64, requires_grad=True) for _ in range(count))

def begin(name):
    print("case", name, flush=True)

def prefill(heads, rows, causal):
    begin(f"{heads} heads of {rows} rows" + (", causal" if causal else ""))
    out = xeflash.attention(*tensors(heads, rows), is_causal=causal)
    if heads == 4:
        begin(f"backward of {heads} heads of {rows} rows" + (", causal" if causal else ""))
        out.backward(torch.ones_like(out))

for causal in (False, True):
    for heads, rows in ((1, 1024), (4, 1024), (8, 512), (8, 2048)):
        prefill(heads, rows, causal)
with torch.inference_mode():
    for keys in (4096, 65536):
        q, (k, v) = torch.randn(1, 1, 8, 64), (torch.randn(1, keys, 2, 64) for _ in range(2))
        begin(f"decode of {keys} keys")
        xeflash.flash_attn_with_kvcache(q, k, v)
    x = torch.randn(1, 64)
    begin("linear of 4096 outputs")
    xeflash.linear(x, torch.randn(4096, 64))
    begin("top k of 65536 tokens")
    xeflash.linear_top_k(x, torch.randn(65536, 64), 5)
print("end")
"""
LAUNCH = re.compile(r"<--- urEnqueueKernelLaunch.*?pGlobalWorkSize = \S+ \((\d+)\)")


@pytest.fixture(scope="module", params=[16, 64, 128])
def cores_and_launches(request):
    """The number of cores, and by case the work-items of each launch."""
    command = [sys.executable, "-c", PROGRAM, str(request.param)]
    environment = os.environ | {"SYCL_UR_TRACE": "2"}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0 and "\nend\n" in done.stdout, done.stdout[-3000:]
    found: dict[str, list[int]] = {}
    for line in done.stdout.splitlines():
        if line.startswith("case "):
            name = line.removeprefix("case ")
            found[name] = []
        elif launch := LAUNCH.search(line):
            found[name].append(int(launch[1]))
    return request.param, found


def share(work: list[int], cores: int) -> float:
    """Of the core that has most, beside the mean: each has as many work-items that follow each other as others."""
    parts = [sum(work[len(work) * i // cores : len(work) * (i + 1) // cores]) for i in range(cores)]
    return max(parts) * cores / sum(work)


def test_equal_tiles_are_shared_out_evenly(cores_and_launches):
    cores, launches = cores_and_launches
    for heads, rows in ((1, 1024), (4, 1024), (8, 512), (8, 2048)):
        items, *_ = launches[f"{heads} heads of {rows} rows"]  # idle cores get keys of a tile: then a launch merges
        lowest = heads * rows // 32
        assert share([1] * items, cores) <= max(1.25, cores / lowest), (heads, rows, items)


def test_gradients_are_shared_out_evenly(cores_and_launches):
    cores, launches = cores_and_launches
    for items in launches["backward of 4 heads of 1024 rows"]:
        assert share([1] * items, cores) <= 1.25


def triangles(heads: int, blocks: int) -> list[int]:
    """Blocks of keys of each tile, in the order of Work in kernels/attention/work.hpp."""
    places = [blocks - 1 - i // 2 if i % 2 else i // 2 for i in range(blocks)]
    return [blocks - place for place in places] * heads


def test_triangles_are_shared_out_evenly(cores_and_launches):
    """A core has a long tile and a short one."""
    cores, launches = cores_and_launches
    for name, items in launches.items():
        if name.endswith("causal"):
            heads, rows = (int(number) for number in re.findall(r"\d+", name))
            lowest = heads * rows // 32
            for n in items:
                assert share(triangles(heads, n // heads), cores) <= max(1.25, 2 * cores / lowest), (name, items)


def test_each_core_has_keys_of_a_decoding_step(cores_and_launches):
    cores, launches = cores_and_launches
    for keys in (4096, 65536):
        splits, merged = launches[f"decode of {keys} keys"]
        assert share([1] * splits, cores) <= 1.25 and merged == 8


def described(name: str):
    """A call of attention in PROGRAM."""
    heads, rows = (int(number) for number in [*re.findall(r"\d+", name), "0"][:2])
    if not name.startswith("decode"):
        phase = "backward" if name.startswith("backward") else "prefill"
        return call_of(Case(phase, "fp32", 1, heads, heads, 64, rows, rows, name.endswith("causal")))
    arrays = {"q": Placeholder((1, 1, 8, 64), "float32")}
    arrays |= {f"{x}_cache": Placeholder((1, heads, 2, 64), "float32") for x in "kv"}  # the number is that of keys
    return lambda: _core.forward(function="test", layout=BSHD, **arrays)


def test_calls_are_described_as_they_are_launched(cores_and_launches):
    cores, launches = cores_and_launches
    names = [name for name in launches if "rows" in name or "decode" in name]
    assert len(names) == 12
    for name in names:
        shares = shares_of(described(name), target("cpu").arch, cores)
        assert [launch.threads for launch in shares.launches] == launches[name], name
        assert shares.percent(shares.widest) == 25 * shares.widest.threads / cores


def test_each_core_has_outputs_of_a_product(cores_and_launches):
    cores, launches = cores_and_launches
    (items,) = launches["linear of 4096 outputs"]
    assert share([1] * items, cores) <= 1.25
    parts, _ = launches["top k of 65536 tokens"]
    assert cores / parts <= 1.25
