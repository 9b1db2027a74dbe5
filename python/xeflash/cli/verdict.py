"""The last line of `xeflash doctor`: whether attention runs on the device that a user's calls would use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from xeflash.cli.checks import needs_another_libsycl
from xeflash.cli.facts import Facts


class Verdict(NamedTuple):
    """The judgement of all facts: true if all is well, and a sentence that says so."""

    ok: bool
    text: str


def users_device(facts: Facts) -> tuple[str, str | None]:
    """Returns the device that a user's arrays would be on, and the outcome of its trial, or None without a trial.

    It is xpu if torch has it, else the GPU that SYCL sees, else the CPU.
    """
    outcomes: Mapping[str, str] = facts.probe.get("attention", {})
    devices: list[Mapping[str, Any]] = facts.probe.get("core", {}).get("devices", [])
    if (facts.probe.get("torch") or {}).get("xpu"):
        return "torch's xpu", outcomes.get("torch xpu")
    gpus = [device for device in devices if device.get("type") == "gpu"]
    for gpu in gpus:
        if gpu.get("arch"):
            return f"{gpu.get('name', 'the GPU')}", outcomes.get("gpu")
    if gpus:
        return str(gpus[0].get("name", "the GPU")), "it has no kernels"
    return "the CPU", outcomes.get("torch cpu", outcomes.get("numpy"))


def verdict(facts: Facts) -> Verdict:
    """Returns the end of the report; it is good only if nothing that was tried failed."""
    probe = facts.probe
    if not probe.get("core", {}).get("devices"):
        return Verdict(False, "attention cannot run")
    if needs_another_libsycl(facts) or "crash_with_torch" in probe or "error" in (probe.get("torch") or {}):
        return Verdict(False, f"torch {facts.versions.get('torch') or ''} cannot be used here: see its error above")
    device, outcome = users_device(facts)
    failed = [name for name, result in probe.get("attention", {}).items() if result != "ok"]
    if outcome not in (None, "ok"):
        working = [name for name, result in probe.get("attention", {}).items() if result == "ok"]
        note = f"; it does for {', '.join(working)}" if working else ""
        return Verdict(False, f"attention does not run on {device}{note}")
    if failed:
        return Verdict(False, f"attention runs on {device}, but fails for {', '.join(failed)}")
    if outcome is None:
        return Verdict(True, f"attention should run on {device}; it was not tried")
    return Verdict(True, f"attention runs on {device}")
