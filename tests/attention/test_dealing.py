"""What simulated devices are dealt: tests that share kernels, every feature, shares of about one size; for good."""

import re
from collections import Counter, defaultdict
from dataclasses import fields

import pytest
import test_gpu
import test_gpu_decode
import test_kv_cache
from dealing import DEVICES, PARTS, device_of, part_of

CASES = {
    "forward": test_gpu.PAIRWISE,
    "decode": [case for _, case in test_gpu_decode.CASES],
    "cache": test_kv_cache.GPU_CASES,
}
FEW = {"dim", "dim_v"}  # some have one kernel, or two
FEW_OF_CACHES = {"heads", "variant"}
TESTS = [(f"{name}.py::test[{case.id}]", {"case": case}) for name, cases in CASES.items() for case in cases]
TESTS += [(f"attention/other.py::test_{i}[{dtype}]", {"dtype": dtype}) for i in range(20) for dtype in ("fp32", "bf16")]
TESTS += [(f"attention/other.py::test_{i}", {}) for i in range(20, 100)]
TESTS += [(f"python/test_{i}.py::test[fp32]", {"dtype": "fp32"}) for i in range(120)]


def kind_of(field, value):
    """Pages are pages, of whatever size, and formats are formats, with whatever scales."""
    if field == "place":
        return re.match("paged|beams|", value)[0]
    return value.partition(".")[0] if field == "format" else value


@pytest.mark.parametrize("name", CASES)
def test_every_device_gets_every_feature(name):
    seen = defaultdict(set)
    for case in CASES[name]:
        device = device_of(part_of(name, {"case": case}))
        for field in fields(case):
            if field.name not in (FEW | FEW_OF_CACHES if name == "cache" else FEW):
                seen[field.name, kind_of(field.name, getattr(case, field.name))].add(device)
    assert not {choice: devices for choice, devices in seen.items() if len(devices) < len(DEVICES)}


def test_tests_that_share_a_kernel_share_a_device():
    parts = defaultdict(set)
    for name in ("forward", "decode"):
        for case in CASES[name]:
            parts[case.dtype, case.dim, case.variant].add(part_of(name, {"case": case}))
    assert {len(of_kernel) for of_kernel in parts.values()} == {1}
    of_parameters = {
        part_of(f"attention/a.py::test_{i}[{kind}-bf16]", {"kind": kind, "dtype": "bf16"})
        for i, kind in enumerate("abcdef")
    }
    of_function = {part_of(f"attention/a.py::test[{kind}]", {"kind": kind}) for kind in "abcdef"}
    of_file = {part_of(f"python/a.py::test_{i}[{dtype}]", {"dtype": dtype}) for i, dtype in enumerate(("fp32", "bf16"))}
    assert len(of_parameters) == len(of_function) == len(of_file) == 1


def test_a_new_test_moves_no_other():
    before = {test: part_of(test, parameters) for test, parameters in TESTS}
    for test, parameters in [("attention/new.py::test[bf16]", {"dtype": "bf16"}), *reversed(TESTS)]:
        assert part_of(test, parameters) == before.get(test, part_of(test, parameters))


def test_shares_are_of_about_one_size():
    parts = Counter(part_of(test, parameters) for test, parameters in TESTS)
    devices = Counter(device_of(part) for part in parts.elements())
    assert set(parts) == set(range(1, PARTS + 1)) and set(devices) == set(DEVICES)
    assert max(devices.values()) < 1.5 * min(devices.values())
    assert max(parts.values()) < 3 * min(parts.values())


def test_what_differs_between_processes_is_no_key():
    with pytest.raises(AssertionError, match="differs from process to process"):
        part_of("attention/a.py::test", {"name": object()})
