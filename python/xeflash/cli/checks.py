"""Checks of the facts: one small function per thing, each with the command that mends it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from xeflash.cli.facts import Facts
from xeflash.cli.known_faults import known_faults

SYCL = '"intel-sycl-rt>=2026.0,<2027"'
OPENCL = '"intel-opencl-rt>=2026.0,<2027"'
_ISA_GOOD = "avx512f"
# Level Zero's version, or OpenCL's: both end in the build's number. Its packages came with IGC 1.0.17791, which
# compiles all kernels for PVC and DG2; 22.43 with IGC 1.0.12504, as in Debian 12, compiles none.
_OLDEST_DRIVER = ("1.6.31294 (24.39, of October 2024)", 31294)
_OLDEST_SYCL = "2026.0"
_LEVEL_ZERO_DRIVERS = ("libze-intel-gpu1", "intel-level-zero-gpu")


@dataclass(frozen=True)
class Check:
    """One finding: status is ok, info, warn or error; `fix` is a command or a step."""

    name: str
    status: str
    detail: str
    fix: str = ""


def soname_major(path: str) -> int | None:
    """Returns N of .../libsycl.so.N[.x.y], or None."""
    match = re.search(r"libsycl\.so\.(\d+)", path)
    return int(match.group(1)) if match else None


def _year(major: int) -> int:
    """Returns the release year that ships libsycl.so.<major>: 8 is 2025, 9 is 2026."""
    return 2017 + major


def _major(version: str) -> int:
    """Returns the N of the libsycl.so.N that a version of intel-sycl-rt has."""
    return int(version.partition(".")[0]) - 2017


def needs_another_libsycl(facts: Facts) -> bool:
    """Returns whether the installed torch and xeflash cannot share an environment."""
    return facts.torch_pin is not None and _major(facts.torch_pin) < _major(_OLDEST_SYCL)


def _torch_fix(facts: Facts) -> str:
    return (
        'take "torch>=2.13" from torch\'s index for xpu, which shares libsycl.so.9 with xeflash; or keep this torch: '
        f"pip uninstall -y xeflash intel-opencl-rt && pip install intel-sycl-rt=={facts.torch_pin}"
    )


def explain_import_error(error: str, facts: Facts) -> Check:
    """Returns the finding that explains an import error of the C++ module, with the command that mends it."""
    runtime = facts.versions.get("intel-sycl-rt")
    wanted = soname_major(error)
    if "No module named 'xeflash._core'" in error:
        return Check(
            "core", "error", f"the C++ module is absent: {error}",
            "pip install --force-reinstall --no-deps xeflash",
        )  # fmt: skip
    if "XEFLASH_TUNED" in error:
        return Check("core", "error", error, "unset XEFLASH_TUNED")
    if "has loaded libsycl" in error:
        return Check("core", "error", error, f"pip install --upgrade {SYCL} dpctl, and a torch of that year")
    if wanted is not None and "cannot open shared object" in error:
        year = _year(wanted)
        have = f"intel-sycl-rt {runtime} is installed" if runtime else "it is not installed"
        note = f"the C++ module needs libsycl.so.{wanted} (intel-sycl-rt {year}.*), {have}"
        return Check("core", "error", note, f'pip install "intel-sycl-rt>={year}.0,<{year + 1}"')
    if "undefined symbol" in error:
        return Check(
            "core", "error", f"libsycl is older than the one xeflash was built with: {error}",
            f"pip install --upgrade {SYCL}",
        )  # fmt: skip
    if "GLIBC" in error:
        return Check(
            "core", "error", f"the system's C or C++ library is too old: {error}",
            "pip install --force-reinstall --no-deps --no-binary xeflash xeflash",
        )  # fmt: skip
    return Check("core", "error", error, f"pip install --force-reinstall {SYCL} {OPENCL}")


def check_core(facts: Facts) -> Iterator[Check]:
    """Checks that the C++ module loads, alone and with torch."""
    probe = facts.probe
    if "crash_with_torch" in probe:
        yield Check(
            "core with torch", "error", f"the process dies: {probe['crash_with_torch']}",
            "use a torch and an intel-sycl-rt of the same year, and do not source setvars.sh",
        )  # fmt: skip
    if "crash" in probe:
        yield Check(
            "core", "error", f"the process dies: {probe['crash']}",
            f"pip install --force-reinstall {SYCL} {OPENCL}",
        )  # fmt: skip
        return
    core: Mapping[str, Any] = probe.get("core", {"error": "not tried"})
    if "error" in core:
        check = explain_import_error(str(core["error"]), facts)
        yield replace(check, fix=_torch_fix(facts)) if needs_another_libsycl(facts) else check
    elif "exit" in probe:
        yield Check("core", "warn", f"loads, but the process ends with code {probe['exit']}")
    else:
        yield Check("core", "ok", "xeflash._core loads")
    if "error" in (probe.get("torch") or {}):
        fix = "" if needs_another_libsycl(facts) else "pip install --force-reinstall torch"
        yield Check("torch", "error", f"cannot be imported: {probe['torch']['error']}", fix)


def _ip(device: Mapping[str, Any]) -> str:
    """Returns the version of a GPU's architecture as an entry of a list, or nothing."""
    return f"IP {device['ip_version']}, " if device.get("ip_version") else ""


def check_driver(device: Mapping[str, Any]) -> Iterator[Check]:
    """Warns about a GPU driver whose compiler may not take all of our kernels."""
    version = str(device.get("driver", ""))
    match = re.match(r"\d+\.\d+\.(\d+)", version)
    if match and int(match[1]) < _OLDEST_DRIVER[1]:
        yield Check(
            "gpu driver", "warn",
            f"{version} of {device.get('name', '?')} is older than {_OLDEST_DRIVER[0]}, the oldest whose compiler is "
            "known to take all kernels",
            "install libze-intel-gpu1 and libze1 from a newer release of the system, or from Intel's packages",
        )  # fmt: skip


def check_devices(facts: Facts) -> Iterator[Check]:
    """Checks that SYCL sees a device, and lists the devices."""
    core = facts.probe.get("core", {})
    if "error" in core or "devices" not in core:
        return
    for device in core["devices"]:
        aspects = [name for name, value in device.items() if value is True]
        detail = (
            f"{device.get('name', '?')} [{device.get('backend', '?')} {device.get('type', '?')}, "
            f"{device.get('arch', '?')}, {_ip(device)}{device.get('compute_units', '?')} compute units], "
            f"driver {device.get('driver', '?')}, has {', '.join(aspects) or '-'}"
        )
        if device.get("no_kernels"):
            yield Check("device", "error", device["no_kernels"])
            continue
        yield Check("device", "ok", detail)
        if device.get("type") == "gpu":
            yield from check_driver(device)
    names = [device.get("name") for device in core["devices"] if device.get("type") == "cpu"]
    if len(names) != len(set(names)):
        yield Check(
            "device", "warn", "the CPU is listed twice: two OpenCL CPU runtimes are found",
            "unset OCL_ICD_FILENAMES",
        )  # fmt: skip
    if not core["devices"]:
        selector = facts.environ.get("ONEAPI_DEVICE_SELECTOR")
        fix = "unset ONEAPI_DEVICE_SELECTOR" if selector else f"pip install {OPENCL}"
        why = f" (ONEAPI_DEVICE_SELECTOR={selector})" if selector else ""
        yield Check("device", "error", f"SYCL sees no device{why}", fix)


def check_tunings(facts: Facts) -> Iterator[Check]:
    """Says for each device whose measurement chooses its tiles, and names a file that is skipped."""
    for device, levels in facts.probe.get("core", {}).get("tunings", {}).items():
        for level, where, why in levels:
            if why:
                yield Check("tuning", "warn", f"{where} is skipped: {why}", "xeflash tune measures anew")
            else:
                yield Check("tuning", "ok", f"{device}: {level}: {where}")
        if not levels:
            off = "off (XEFLASH_TUNED)" if facts.environ.get("XEFLASH_TUNED") == "off" else "none, the tables choose"
            yield Check("tuning", "info", f"{device}: {off}", "xeflash tune measures what is faster on this device")


def check_attention(facts: Facts) -> Iterator[Check]:
    """Checks that a small attention gives the right result."""
    for kind, outcome in facts.probe.get("attention", {}).items():
        yield Check("attention", "ok" if outcome == "ok" else "error", f"{kind}: {outcome}")
    core = facts.probe.get("core", {})
    if core.get("devices") and not facts.probe.get("attention"):
        yield Check(
            "attention", "warn", "not tried: neither torch nor numpy is installed",
            "pip install numpy",
        )  # fmt: skip


def check_libsycl(facts: Facts) -> Iterator[Check]:
    """Checks that the process has one libsycl, the one of this environment."""
    version = facts.versions.get("intel-sycl-rt")
    mapped = [str(path) for path in facts.probe.get("mapped", ())]
    majors = sorted({m for m in map(soname_major, mapped) if m is not None})
    if version is None:
        status = "warn" if mapped else "error"
        yield Check("intel-sycl-rt", status, "is not installed", f"pip install {SYCL}")
    else:
        yield Check("intel-sycl-rt", "ok", f"{version}: {', '.join(facts.libsycl_files) or '-'}")
    if len(majors) > 1:
        both = " and ".join(f"libsycl.so.{major}" for major in majors)
        yield Check(
            "libsycl", "error", f"{both} are in one process: {', '.join(mapped)}",
            f"one of torch, dpctl and xeflash is for another SYCL: pip install {SYCL} and a torch "
            "of that year",
        )  # fmt: skip
    elif len(mapped) > 1:
        yield Check("libsycl", "warn", f"loaded from two places: {', '.join(mapped)}")
    elif mapped:
        yield Check("libsycl", "ok", f"in use: {mapped[0]}")
    if version is not None:
        if facts.libsycl_jit is None:
            yield Check(
                "libsycl-jit", "error", "the compiler library is absent",
                f"pip install --force-reinstall {SYCL}",
            )  # fmt: skip
        else:
            yield Check("libsycl-jit", "ok", facts.libsycl_jit)


def check_opencl(facts: Facts) -> Iterator[Check]:
    """Checks that there is an OpenCL CPU device, which runs our kernels where there is no GPU."""
    version = facts.versions.get("intel-opencl-rt")
    if facts.opencl_cpu is None:
        yield Check("intel-opencl-rt", "warn", "no OpenCL CPU device", f"pip install {OPENCL}")
    else:
        yield Check("intel-opencl-rt", "ok", f"{version}: {facts.opencl_cpu}")
    for path in facts.missing_icds:
        yield Check(
            "OCL_ICD_FILENAMES", "warn", f"names a file that does not exist: {path}",
            "unset OCL_ICD_FILENAMES",
        )  # fmt: skip


def check_torch_pin(facts: Facts) -> Iterator[Check]:
    """Checks that the installed intel-sycl-rt is the one that torch asks for, or of its year."""
    pin, installed = facts.torch_pin, facts.versions.get("intel-sycl-rt")
    if pin is None or installed is None:
        return
    torch = f"torch {facts.versions.get('torch')}"
    if needs_another_libsycl(facts):
        now = "which is installed" if installed == pin else f"whose place {installed} has taken"
        yield Check(
            "torch's libsycl", "error", f"{torch} needs intel-sycl-rt {pin} (libsycl.so.{_major(pin)}), {now}; xeflash "
            f"needs libsycl.so.{_major(_OLDEST_SYCL)}, and one environment holds one of them", _torch_fix(facts),
        )  # fmt: skip
    elif installed != pin:
        yield Check(
            "torch's libsycl", "warn", f"{torch} asks for intel-sycl-rt {pin}, {installed} is installed; xeflash works "
            "with both", f"pip install intel-sycl-rt=={pin}",
        )  # fmt: skip


def check_packages(facts: Facts) -> Iterator[Check]:
    """Reports the optional packages."""
    torch = facts.versions.get("torch")
    if torch is None:
        yield Check("torch", "info", "not installed (numpy arrays work)", "pip install torch")
    elif "error" not in (facts.probe.get("torch") or {}):
        xpu = (facts.probe.get("torch") or {}).get("xpu")
        yield Check("torch", "ok", f"{torch}, xpu {'available' if xpu else 'not available'}")
    dpctl = facts.versions.get("dpctl")
    yield Check("dpctl", "info", dpctl or "not installed (optional)")


def check_gpu(facts: Facts) -> Iterator[Check]:
    """Checks that there is an Intel GPU with a driver, and that this user may use it."""
    if not facts.gpu_nodes:
        yield Check(
            "gpu", "info", "none: no /dev/dri/renderD*",
            "if this machine has an Intel GPU: Arc B needs Linux 6.12 or newer with its module xe, Arc A 6.2 or newer "
            "with i915",
        )  # fmt: skip
    for node, usable in facts.gpu_nodes.items():
        if not usable:
            yield Check(
                "gpu", "warn", f"{node} may not be opened by this user",
                'sudo usermod -aG render "$USER" (then log in again)',
            )  # fmt: skip
    drivers = ", ".join(facts.gpu_drivers)
    if any("libze_intel_gpu" in path for path in facts.gpu_drivers):
        yield Check("gpu driver", "ok", drivers)
    elif facts.gpu_nodes:
        here = [name for name in _LEVEL_ZERO_DRIVERS if name in facts.apt][:1]
        here += [name for name in ("libze1", "intel-opencl-icd") if here and name in facts.apt]
        yield Check(
            "gpu driver", "warn", f"no Level Zero driver; found: {drivers or 'nothing'}",
            f"sudo apt install {' '.join(here)}" if here else "install Intel's GPU driver (with Level Zero: "
            f"{_LEVEL_ZERO_DRIVERS[0]}) from Intel's repository for this system, whose own one has none",
        )  # fmt: skip


def check_cards(facts: Facts) -> Iterator[Check]:
    """Reports the cards on the PCI bus, and warns of known faults of their software."""
    for card in facts.cards:
        window = f"{card.window} MiB of its memory within the CPU's reach"
        if card.module:
            yield Check("card", "ok", f"{card}: kernel driver {card.module}, Linux {facts.kernel}, {window}")
        else:
            log = 'sudo dmesg | grep -E "xe|i915"'
            yield Check("card", "warn", f"{card}: Linux {facts.kernel} has no driver for it", log)
    for platform in sorted({card.platform for card in facts.cards}):
        if platform in facts.guc:
            yield Check("gpu firmware", "ok", f"GuC of {platform}: {facts.guc[platform]}")
        else:
            yield Check(
                "gpu firmware", "info", f"GuC of {platform}: its version is for root to read",
                'sudo dmesg | grep "GuC firmware"',
            )  # fmt: skip
    for text, remedy in known_faults(facts):
        yield Check("known fault", "warn", text, remedy)


def check_tools(facts: Facts) -> Iterator[Check]:
    """Reports the programs that only some tasks need."""
    cxx = [f"{n} ({facts.tools[n]})" for n in ("g++", "clang++", "libc++") if facts.tools.get(n)]
    yield Check(
        "C++ headers", "info" if cxx else "warn",
        ", ".join(cxx) or "none: kernels that did not come with xeflash are compiled with those of g++",
        "" if cxx else "sudo apt install g++" if "g++" in facts.apt else "install g++",
    )  # fmt: skip
    ocloc = facts.tools.get("ocloc")
    wanted = facts.environ.get("XEFLASH_OCLOC")
    if ocloc is None and wanted:
        yield Check("ocloc", "warn", f"XEFLASH_OCLOC={wanted} is not a program", "unset XEFLASH_OCLOC")
    elif ocloc is None:
        yield Check(
            "ocloc", "info", "none (only needed to compile for a GPU that is not here)",
            "python -m xeflash.sim.get_ocloc",
        )  # fmt: skip
    else:
        yield Check("ocloc", "ok", ocloc)


def check_cache(facts: Facts) -> Iterator[Check]:
    """Checks that compiled kernels can be kept."""
    cache = facts.cache
    detail = f"{cache.path}: {cache.entries} entries, {cache.size_bytes / 1e6:.1f} MB"
    if cache.refused:
        yield Check("cache", "warn", f"not used: {cache.refused}", "export XEFLASH_CACHE_DIR=/some/folder/of/yours")
    elif cache.writable:
        yield Check("cache", "ok", detail)
    else:
        yield Check("cache", "warn", f"{detail}, not writable", "export XEFLASH_CACHE_DIR=/some/folder")


def check_last_report(facts: Facts) -> Iterator[Check]:
    """Names what `xeflash report` was doing when it, or the machine, was stopped."""
    if facts.last_report:
        yield Check("report", "warn", facts.last_report, "xeflash report tells it in its file, and begins anew")


_RATES = {"fp32": "fp32", "pairs": "bf16 in pairs (vdpbf16ps)", "tiles": "bf16 in tiles (AMX)"}


def check_cpu(facts: Facts) -> Iterator[Check]:
    """Reports the CPU's vector extensions and rates."""
    isa = ", ".join(facts.isa) or "none of AVX2, AVX-512, AMX"
    yield Check("cpu", "ok" if _ISA_GOOD in facts.isa else "info", f"{facts.cpu}: {isa}")
    rates = facts.probe.get("core", {}).get("rates", {})
    measured = [f"{what} {2e-9 * rates[name]:.0f}" for name, what in _RATES.items() if rates.get(name)]
    if measured:
        text = f"GFLOP/s of one core now: {', '.join(measured)}"
        if not rates.get("tiles") and 0 < rates.get("pairs", 0) < rates.get("fp32", 0):
            text += "; bf16 is widened to fp32, which is faster here, but not faster than fp32 itself"
        yield Check("cpu", "info", text)
    yield Check("python", "ok", facts.python)


def check_environment(facts: Facts) -> Iterator[Check]:
    """Warns about variables that oneAPI's setvars.sh has set and that put another libsycl first."""
    for variable, files in facts.foreign_libsycl.items():
        yield Check(variable, "warn", f"names another libsycl: {', '.join(files)}", f"unset {variable}")
    root = facts.environ.get("ONEAPI_ROOT")
    if root or facts.environ.get("SETVARS_COMPLETED"):
        where = f" (ONEAPI_ROOT={root})" if root else ""
        yield Check(
            "setvars.sh", "warn", f"was sourced in this shell{where}; xeflash needs no oneAPI",
            "open a new shell without it",
        )  # fmt: skip


def all_checks(facts: Facts) -> list[Check]:
    """Returns the findings, the decisive ones first."""
    parts = (
        check_core, check_devices, check_tunings, check_attention, check_last_report, check_libsycl, check_torch_pin,
        check_opencl, check_packages, check_gpu, check_cards, check_environment, check_tools, check_cache, check_cpu,
    )  # fmt: skip
    return [check for part in parts for check in part(facts)]
