"""The GPUs that users have: which kernels each runs, and which are refused by name."""

import json
from pathlib import Path

import pytest
from esimd import Fault, machine, native
from test_attention import run_tests
from xeflash.cli import main
from xeflash.sim.binary import vector_engines

# Family of the kernels, IP version, compute units.
DEVICES = {
    "bmg-g31": ("bmg", "20.2.0", 256),
    "lnl": ("bmg", "20.4.4", 64),
    "ptl": ("bmg", "30.0.4", 96),
    "ats-m": ("dg2", "12.55.8", 512),
    "arl-h": ("dg2", "12.74.4", 128),
}
SAMPLE = ("attention/test_sample.py",)
LIST = """
import json
import xeflash
xeflash.attention
gpus = [device for device in xeflash._core.devices() if device["type"] == "gpu"]
print(json.dumps([[d["arch"], d["ip_version"], d["compute_units"], d["no_kernels"]] for d in gpus]))
"""


def listed(simulated, *devices):
    return json.loads(simulated.python(LIST, *devices).stdout)


def test_every_device_has_the_kernels_of_its_family(simulated):
    assert listed(simulated, *DEVICES) == [[*facts, ""] for facts in DEVICES.values()]
    assert [vector_engines(name) for name in DEVICES] == [units for _, _, units in DEVICES.values()]


# Steppings, and GPUs newer than the SYCL runtime, which has no name for them.
@pytest.mark.parametrize(
    ("version", "family"),
    [("20.1.0", "bmg"), ("20.2.9", "bmg"), ("30.1.1", "bmg"), ("30.3.1", "bmg"), ("30.4.4", "bmg"), ("30.5.4", "bmg"),
     ("12.55.4", "dg2"), ("12.56.5", "dg2"), ("12.57.0", "dg2"), ("12.60.0", "pvc")],
)  # fmt: skip
def test_a_revision_changes_nothing(simulated, version, family):
    ((arch, told, _, no_kernels),) = listed(simulated, f"bmg@{version}")
    assert (arch, told, no_kernels) == (family, version, "")


REFUSED = {
    "mtl-h": ("12.71.4", "it has no matrix unit"),
    "dg2@12.70.4": ("12.70.4", "it has no matrix unit"),
    "pvc@12.61.7": ("12.61.7", "it has no matrix unit"),
    "dg2@12.0.0": ("12.0.0", "it has no matrix unit"),
    "bmg@35.11.0": ("35.11.0", "this version of xeflash does not know it"),
}


@pytest.mark.parametrize("device", REFUSED)
def test_a_gpu_without_kernels_is_listed_with_the_reason(simulated, device):
    version, why = REFUSED[device]
    ((arch, told, _, no_kernels),) = listed(simulated, device)
    assert (arch, told) == ("", version)
    assert f"(IP version {version}) has no kernels: {why}" in no_kernels


CALLS = """
import sys
sys.path.insert(0, {tests!r})
import torch, usm, xeflash
from arrays import to_array
x = [to_array(torch.zeros(1, 5, 2, 64), "usm") for _ in range(4)]
one, lse = to_array(torch.zeros(1, 1, 2, 64), "usm"), to_array(torch.zeros(1, 2, 5), "usm")
calls = {{
    "forward": lambda: xeflash.flash_attn_func(*x[:3]),
    "decode": lambda: xeflash.flash_attn_func(one, *x[:2]),
    "append": lambda: xeflash.flash_attn_with_kvcache(one, *x[:2], one, one, cache_seqlens=2),
    "merge": lambda: xeflash.merge_states(x[0], lse, x[1], lse),
    "standard": lambda: xeflash._core.standard_attention(function="standard", layout=2, q=x[0], k=x[1], v=x[2]),
}}
for name, call in calls.items():
    try:
        call()
    except NotImplementedError as error:
        print(name, error)
"""


@pytest.mark.parametrize("device", ["mtl-h", "bmg@35.11.0"])
def test_calls_on_a_gpu_without_kernels_are_refused_by_name(simulated, device):
    version, why = REFUSED[device]
    said = simulated.python(CALLS.format(tests=str(Path(__file__).parents[1])), device).stdout.splitlines()
    assert [line.split()[0] for line in said] == ["forward", "decode", "append", "merge", "standard"]
    for line in said:
        assert line.split(None, 1)[1].startswith("xeflash: Intel(R) Arc(TM)")
        assert line.endswith(f" (simulated) (IP version {version}) has no kernels: {why}")


@pytest.mark.wide
def test_the_doctor_fails_on_a_gpu_without_kernels(simulated):
    code = "from xeflash.cli import main\nsys.exit(main(['doctor', '--json']))\n"
    report = json.loads(simulated.python(code, "mtl-h", status=1, XEFLASH_SIM="mtl-h").stdout)
    (finding,) = [check for check in report["checks"] if check["status"] == "error"]
    assert "Arc(TM) Graphics (simulated) (IP version 12.71.4) has no kernels" in finding["detail"]
    assert not report["ok"]
    report = json.loads(simulated.python(code, "mtl-h,arl-h", XEFLASH_SIM="mtl-h,arl-h").stdout)
    assert report["ok"]  # the other one has


def test_matrix_products_are_not_loaded_where_there_is_no_matrix_unit():
    code = native("multiply", "dg2", registers=128, lanes=8)
    if isinstance(code, str):
        pytest.skip(code)
    assert machine.Machine("arl-h").load(code)
    with pytest.raises(Fault, match="kernel .* multiplies matrices, and the device has no matrix unit"):
        machine.Machine("mtl-h").load(code)


def test_inspect_reads_binaries_of_xe3(tmp_path, capsys):
    code = native("multiply", "ptl", registers=128, lanes=16)
    if isinstance(code, str):
        pytest.skip(code)
    file = tmp_path / "kernel"
    file.write_bytes(code)
    assert main(["inspect", str(file), "--device", "ptl", "--json"]) == 0
    kernels = json.loads(capsys.readouterr().out)
    assert {kernel["all"]["dpas"] for kernel in kernels} == {1}
    assert {kernel["first_unknown"] for kernel in kernels} == {""}
    assert main(["inspect", str(file), "--device", "bmg"]) == 1
    assert "the native binary was built for ptl, the device is bmg" in capsys.readouterr().err


@pytest.mark.wide
@pytest.mark.parametrize("device", ("ptl", "arl-h"))
def test_sample(device, ocloc):
    run_tests(device, what=SAMPLE)


@pytest.mark.long
@pytest.mark.parametrize("device", DEVICES)
def test_long_sample(device, ocloc):
    run_tests(device, "-m", "", what=SAMPLE)
