"""The doctor's findings for made-up machines."""

import io
import json
import sys

import pytest
from xeflash.cli import checks, doctor, main
from xeflash.cli.facts import Cache, Facts
from xeflash.cli.verdict import users_device, verdict

CPU = {
    "name": "a CPU",
    "backend": "opencl",
    "driver": "1.2",
    "type": "cpu",
    "arch": "cpu-avx512",
    "compute_units": 2,
    "fp16": True,
    "esimd": False,
}


def healthy(**changes):
    values = {
        "python": "3.11",
        "prefix": "/env",
        "isa": ("avx2", "avx512f"),
        "versions": {
            "intel-sycl-rt": "2026.2.0",
            "intel-opencl-rt": "2026.2.0",
            "torch": "2.13.0+cpu",
        },
        "libsycl_files": ("/env/lib/libsycl.so.9",),
        "libsycl_jit": "/env/lib/libsycl-jit.so",
        "opencl_cpu": "/env/lib/libintelocl.so",
        "tools": {"g++": "/usr/bin/g++", "ocloc": "/usr/bin/ocloc"},
        "cache": Cache("/home/me/.cache/xeflash", 3, 5_000_000),
        "probe": {
            "torch": {"version": "2.13.0+cpu", "xpu": False},
            "core": {"devices": [CPU]},
            "attention": {"torch cpu": "ok"},
            "mapped": ["/env/lib/libsycl.so.9"],
        },
    }
    return Facts(**{**values, **changes})


def probing(**changes):
    return healthy(probe={**healthy().probe, **changes})


@pytest.mark.parametrize(("pairs", "widened"), [(43e9, True), (175e9, False)])
def test_rates_of_the_cpu_are_those_that_it_has(pairs, widened):
    rates = {"fp32": 87.5e9, "pairs": pairs, "tiles": 0.0}
    machine = probing(core={"devices": [CPU], "rates": rates})
    (line,) = (check.detail for check in checks.all_checks(machine) if "GFLOP/s" in check.detail)
    assert line.startswith(f"GFLOP/s of one core now: fp32 175, bf16 in pairs (vdpbf16ps) {2e-9 * pairs:.0f}")
    assert line.endswith("; bf16 is widened to fp32, which is faster here, but not faster than fp32 itself") == widened


def findings(machine, status):
    return [check for check in checks.all_checks(machine) if check.status == status]


def only(machine, status):
    (check,) = findings(machine, status)
    return check


def test_healthy_machine_has_no_complaint():
    machine = healthy()
    assert verdict(machine).ok
    assert findings(machine, "error") == findings(machine, "warn") == []
    (device,) = [c for c in checks.all_checks(machine) if c.name == "device"]
    assert "a CPU [opencl cpu, cpu-avx512, 2 compute units], driver 1.2, has fp16" in device.detail


MISSING_9 = "ImportError: libsycl.so.9: cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("error", "versions", "says", "fix"),
    [
        (MISSING_9, {}, "it is not installed", 'pip install "intel-sycl-rt>=2026.0,<2027"'),
        (
            MISSING_9,
            {"intel-sycl-rt": "2025.3.2"},
            "intel-sycl-rt 2025.3.2 is installed",
            ">=2026.0,<2027",
        ),
        (MISSING_9.replace("so.9", "so.8"), {}, "intel-sycl-rt 2025.*", ">=2025.0,<2026"),
        (
            "ImportError: this process has loaded libsycl.so.8 (/x/libsycl.so.8)",
            {"intel-sycl-rt": "2026.2.0"},
            "has loaded libsycl.so.8",
            "pip install --upgrade",
        ),
        (
            "ImportError: undefined symbol: _ZN4sycl3foo",
            {"intel-sycl-rt": "2026.0.0"},
            "older",
            "pip install --upgrade",
        ),
        (
            "ModuleNotFoundError: No module named 'xeflash._core'",
            {},
            "is absent",
            "--force-reinstall",
        ),
        ("ImportError: version `GLIBCXX_3.4.32' not found", {}, "too old", "--no-binary xeflash"),
        ("ValueError: XEFLASH_TUNED must be off or a file, got 'OFF'", {}, "got 'OFF'", "unset XEFLASH_TUNED"),
        ("RuntimeError: something else", {}, "something else", "pip install"),
    ],
)
def test_import_failure_is_explained(error, versions, says, fix):
    machine = healthy(versions=versions, probe={"core": {"error": error}})
    assert not verdict(machine).ok
    (core,) = [check for check in checks.all_checks(machine) if check.name == "core"]
    assert core.status == "error"
    assert says in core.detail
    assert fix in core.fix


@pytest.mark.parametrize("error", [MISSING_9, "ImportError: this process has loaded libsycl.so.8 (/x/libsycl.so.8)"])
def test_an_import_failure_is_not_mended_at_the_cost_of_torch(error):
    machine = torch_of("2025.3.2", "2025.3.2", probe={"core": {"error": error}})
    assert all("torch>=2.13" in error.fix for error in findings(machine, "error"))


def test_crash_of_the_child_is_an_error():
    machine = healthy(probe={"crash": "signal 11: no message"})
    assert not verdict(machine).ok
    assert "signal 11" in only(machine, "error").detail


def test_crash_with_torch_only_is_told_apart():
    machine = probing(torch=None, crash_with_torch="signal 11: no message")
    assert not verdict(machine).ok
    assert only(machine, "error").name == "core with torch"


def test_two_majors_in_one_process_are_an_error():
    error = only(probing(mapped=["/a/libsycl.so.8.0.0", "/env/lib/libsycl.so.9"]), "error")
    assert "libsycl.so.8 and libsycl.so.9" in error.detail


def test_one_major_from_two_places_is_a_warning():
    assert "two places" in only(probing(mapped=["/a/libsycl.so.9", "/b/libsycl.so.9"]), "warn").detail


def test_no_device_names_the_command():
    machine = probing(core={"devices": []}, attention={})
    assert not verdict(machine).ok
    assert only(machine, "error").fix == 'pip install "intel-opencl-rt>=2026.0,<2027"'


def test_no_device_because_of_the_selector():
    machine = healthy(
        environ={"ONEAPI_DEVICE_SELECTOR": "level_zero:*"},
        probe={"core": {"devices": []}},
    )
    assert only(machine, "error").fix == "unset ONEAPI_DEVICE_SELECTOR"


GPU = CPU | {"name": "a GPU", "backend": "level_zero", "driver": "1.6.31294+20", "type": "gpu", "arch": "bmg"}
GPU |= {"ip_version": "20.1.4", "no_kernels": ""}
XPU = {"version": "2.13.0+xpu", "xpu": True}


@pytest.mark.parametrize(
    ("changes", "device", "text"),
    [
        ({}, "the CPU", "attention runs on the CPU"),
        ({"torch": None, "attention": {"numpy": "ok"}}, "the CPU", "attention runs on the CPU"),
        ({"core": {"devices": [CPU, GPU]}, "attention": {"torch cpu": "ok", "gpu": "ok"}}, "a GPU", "runs on a GPU"),
        (
            {"torch": XPU, "core": {"devices": [CPU, GPU]}, "attention": {"torch cpu": "ok", "torch xpu": "ok"}},
            "torch's xpu",
            "attention runs on torch's xpu",
        ),
        ({"core": {"devices": [CPU, GPU]}, "attention": {}}, "a GPU", "should run on a GPU; it was not tried"),
    ],
)
def test_the_verdict_is_about_the_device_that_calls_would_use(changes, device, text):
    machine = probing(**changes)
    assert users_device(machine)[0] == device
    assert verdict(machine).ok and text in verdict(machine).text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (
            {"torch": XPU, "attention": {"torch cpu": "ok", "torch xpu": "RuntimeError: lost"}},
            "attention does not run on torch's xpu; it does for torch cpu",
        ),
        (
            {"torch": XPU, "attention": {"torch cpu": "RuntimeError: lost", "torch xpu": "ok"}},
            "but fails for torch cpu",
        ),
        ({"attention": {"torch cpu": "wrong result, error 1.0e+00"}}, "attention does not run on the CPU"),
        (
            {"core": {"devices": [CPU, GPU]}, "attention": {"torch cpu": "ok", "gpu": "RuntimeError: lost"}},
            "attention does not run on a GPU; it does for torch cpu",
        ),
        ({"core": {"devices": [CPU, GPU | {"arch": ""}]}}, "attention does not run on a GPU; it does for torch cpu"),
        (
            {"torch": {"error": "OSError: libsycl.so.8"}, "attention": {"numpy": "ok"}},
            "torch 2.13.0+cpu cannot be used",
        ),
        ({"crash_with_torch": "signal 11", "attention": {"numpy": "ok"}}, "torch 2.13.0+cpu cannot be used"),
        ({"core": {"devices": []}}, "attention cannot run"),
    ],
)
def test_what_failed_is_not_called_running(changes, text):
    machine = probing(**changes)
    assert not verdict(machine).ok and text in verdict(machine).text
    out = io.StringIO()
    doctor.print_report(machine, checks.all_checks(machine), out)
    assert text in out.getvalue().splitlines()[-1] and json.loads(doctor.report_json(machine, []))["ok"] is False


def torch_of(pin, installed, **changes):
    versions = healthy().versions | {"torch": "2.12.0+xpu", "intel-sycl-rt": installed}
    return healthy(versions=versions, torch_pin=pin, **changes)


@pytest.mark.parametrize(
    ("installed", "says"), [("2026.2.0", "whose place 2026.2.0 has taken"), ("2025.3.2", "which is installed")]
)
def test_a_torch_for_another_libsycl_is_an_error_with_its_fix(installed, says):
    machine = torch_of("2025.3.2", installed)
    error = only(machine, "error")
    assert "torch 2.12.0+xpu needs intel-sycl-rt 2025.3.2 (libsycl.so.8)" in error.detail and says in error.detail
    assert "torch>=2.13" in error.fix and "pip install intel-sycl-rt==2025.3.2" in error.fix
    assert not verdict(machine).ok


def test_another_version_of_the_same_libsycl_is_a_warning():
    machine = torch_of("2026.0.0", "2026.2.0")
    assert only(machine, "warn").fix == "pip install intel-sycl-rt==2026.0.0" and verdict(machine).ok
    assert not findings(torch_of("2026.0.0", "2026.0.0"), "warn")


def test_devices_decide_where_attention_was_not_tried():
    machine = probing(attention={})
    assert verdict(machine).ok
    assert only(machine, "warn").fix == "pip install numpy"


@pytest.mark.parametrize(
    ("changes", "status", "says", "fix"),
    [
        ({"libsycl_jit": None}, "error", "compiler library", "--force-reinstall"),
        ({"opencl_cpu": None}, "warn", "no OpenCL CPU device", '"intel-opencl-rt>=2026.0,<2027"'),
        (
            {"missing_icds": ("/gone/libintelocl.so",)},
            "warn",
            "/gone/libintelocl.so",
            "unset OCL_ICD_FILENAMES",
        ),
        (
            {"cache": Cache("/ro", writable=False)},
            "warn",
            "not writable",
            "export XEFLASH_CACHE_DIR=",
        ),
        (
            {"foreign_libsycl": {"LD_LIBRARY_PATH": ("/opt/intel/lib/libsycl.so.8",)}},
            "warn",
            "/opt/intel/lib/libsycl.so.8",
            "unset LD_LIBRARY_PATH",
        ),
        (
            {"environ": {"ONEAPI_ROOT": "/opt/intel/oneapi"}},
            "warn",
            "/opt/intel/oneapi",
            "open a new shell",
        ),
        ({"environ": {"SETVARS_COMPLETED": "1"}}, "warn", "was sourced", "open a new shell"),
        (
            {"tools": {"g++": "/usr/bin/g++", "ocloc": None}, "environ": {"XEFLASH_OCLOC": "/x"}},
            "warn",
            "XEFLASH_OCLOC=/x",
            "unset XEFLASH_OCLOC",
        ),
        (
            {
                "gpu_nodes": {"/dev/dri/renderD128": False},
                "gpu_drivers": ("/usr/lib/libze_intel_gpu.so.1",),
            },
            "warn",
            "may not be opened",
            "usermod -aG render",
        ),
        (
            {"gpu_nodes": {"/dev/dri/renderD128": True}},
            "warn",
            "no Level Zero driver",
            "install Intel's GPU driver",
        ),
        (
            {"gpu_nodes": {"/dev/dri/renderD128": True}, "apt": ("libze1", "libze-intel-gpu1")},
            "warn",
            "no Level Zero driver",
            "sudo apt install libze-intel-gpu1 libze1",
        ),
    ],
)
def test_what_is_missing_has_its_command(changes, status, says, fix):
    check = only(healthy(**changes), status)
    assert says in check.detail
    assert fix in check.fix


def test_absent_optional_things_are_no_complaint():
    machine = healthy(
        versions={"intel-sycl-rt": "2026.2.0", "intel-opencl-rt": "2026.2.0"}, tools={"g++": "/usr/bin/g++"}, isa=()
    )
    assert findings(machine, "error") == findings(machine, "warn") == []
    fixes = " ".join(check.fix for check in checks.all_checks(machine))
    assert "pip install torch" in fixes
    assert "python -m xeflash.sim.get_ocloc" in fixes


@pytest.mark.parametrize(("apt", "fix"), [((), "install g++"), (("g++",), "sudo apt install g++")])
def test_kernels_need_the_headers_of_a_compiler(apt, fix):
    check = only(healthy(tools={}, apt=apt), "warn")
    assert check.name == "C++ headers" and check.fix == fix
    with_its_own = healthy(tools={"libc++": "/lib/include/c++/v1"}, apt=apt)
    assert "libc++" in next(check for check in checks.all_checks(with_its_own) if check.name == "C++ headers").detail


def test_two_cpu_devices_are_a_warning():
    assert "listed twice" in only(probing(core={"devices": [CPU, CPU]}), "warn").detail


def test_empty_machine_is_judged_too():
    assert not verdict(Facts()).ok
    assert checks.all_checks(Facts())


def test_report_is_plain_without_a_terminal():
    out = io.StringIO()
    machine = healthy(opencl_cpu=None)
    doctor.print_report(machine, checks.all_checks(machine), out)
    text = out.getvalue()
    assert "\x1b" not in text
    assert '-> pip install "intel-opencl-rt>=2026.0,<2027"\n' in text
    assert text.endswith("attention runs on the CPU\n")
    assert all(line.split()[0] in ("ok", "info", "warn", "->", "attention") for line in text.splitlines())


@pytest.mark.parametrize("words", [["doctor"], ["doctor", "--json"]])
def test_a_full_disk_is_told_in_one_line(words, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "gather", healthy)
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(words) == 1
    assert capsys.readouterr().err == "xeflash: the output could not be written: No space left on device\n"


def test_json_report_holds_findings_and_no_foreign_variables():
    machine = healthy(environ={"SECRET": "x", "OCL_ICD_FILENAMES": "y"})
    data = json.loads(doctor.report_json(machine, checks.all_checks(machine)))
    assert data["ok"] is True
    assert data["facts"]["environ"] == {"OCL_ICD_FILENAMES": "y"}
    assert {"name", "status", "detail", "fix"} == set(data["checks"][0])


@pytest.mark.parametrize(("machine", "code"), [(healthy(), 0), (Facts(), 1)])
def test_exit_code_says_whether_attention_runs(monkeypatch, capsys, machine, code):
    monkeypatch.setattr(doctor, "gather", lambda: machine)
    assert main(["doctor"]) == code
    assert main(["doctor", "--json"]) == code
    assert capsys.readouterr().out


def with_gpu(**changes):
    return probing(core={"devices": [CPU, GPU | changes]})


@pytest.mark.parametrize("driver", ["1.6.31294+20", "1.14.37020", "24.39.31294", "1.6.33578+ocloc.26.27.039122", "odd"])
def test_a_driver_that_is_new_enough(driver):
    assert findings(with_gpu(driver=driver), "warn") == []


@pytest.mark.parametrize("driver", ["1.3.24595", "22.43.24595", "1.3.29735+27", "1.6.31293"])
def test_an_older_driver_is_told(driver):
    warning = only(with_gpu(driver=driver), "warn")
    assert warning.name == "gpu driver" and f"{driver} of a GPU is older than 1.6.31294" in warning.detail
    assert "libze-intel-gpu1" in warning.fix


def test_a_gpu_without_kernels_is_an_error_if_no_other_has_them():
    missing = {"name": "old", "arch": "", "no_kernels": "xeflash: old (IP version 12.0.0) has no kernels: why"}
    machine = with_gpu(**missing)
    assert not verdict(machine).ok
    assert only(machine, "error").detail == missing["no_kernels"]
    assert findings(machine, "warn") == []
    both = probing(core={"devices": [CPU, GPU | missing, GPU]})
    assert verdict(both).ok
    assert only(both, "error").detail == missing["no_kernels"]


def test_a_gpu_is_listed_with_its_ip_version():
    (_, device) = [c for c in checks.all_checks(with_gpu()) if c.name == "device"]
    assert "a GPU [level_zero gpu, bmg, IP 20.1.4, 2 compute units], driver 1.6.31294+20" in device.detail
