"""What simulated devices are dealt: tests that share kernels, every feature, shares of about one size; for good."""

import re
from collections import Counter, defaultdict
from dataclasses import fields

import pytest
import shards
import test_gpu
import test_gpu_decode
import test_kv_cache
from dealing import DEVICES, device_of, shard_of

CASES = {
    "forward": test_gpu.PAIRWISE,
    "decode": [case for _, case in test_gpu_decode.CASES],
    "cache": test_kv_cache.GPU_CASES,
}
TESTS = [(f"{name}.py::test[{case.id}]", {"case": case}) for name, cases in CASES.items() for case in cases]
TESTS += [(f"attention/other.py::test_{i}[{dtype}]", {"dtype": dtype}) for i in range(20) for dtype in ("fp32", "bf16")]
TESTS += [(f"attention/other.py::test_{i}", {}) for i in range(20, 100)]
TESTS += [(f"python/test_{i}.py::test[fp32]", {"dtype": "fp32"}) for i in range(120)]


FEW = {"dim", "dim_v"}  # some have one kernel, or two
FEW_OF_CACHES = {"heads", "variant", "slopes", "scale"}


def kind_of(field, value):
    """Pages are pages, of whatever size, and formats are formats, with whatever scales."""
    if field == "place":
        return re.match("paged|beams|", value)[0]
    return value.partition(".")[0] if field == "format" else value


@pytest.mark.parametrize("name", CASES)
def test_every_device_gets_every_feature(name):
    seen = defaultdict(set)
    for case in CASES[name]:
        device = device_of(name, {"case": case})
        for field in fields(case):
            if field.name not in (FEW | FEW_OF_CACHES if name == "cache" else FEW):
                seen[field.name, kind_of(field.name, getattr(case, field.name))].add(device)
    assert not {choice: devices for choice, devices in seen.items() if len(devices) < len(DEVICES)}


def test_tests_that_share_a_kernel_share_a_device_and_a_shard():
    devices, parts = defaultdict(set), defaultdict(set)
    for name in ("forward", "decode"):
        for case in CASES[name]:
            kernel = case.dtype, case.dim, case.dim_v, case.variant
            devices[kernel].add(device_of(name, {"case": case}))
            parts[kernel].add(shard_of(name, {"case": case}, 50))
    assert {len(found) for found in (*devices.values(), *parts.values())} == {1}
    by_parameters = {
        device_of(f"attention/a.py::test_{i}[{kind}-bf16]", {"kind": kind, "dtype": "bf16"})
        for i, kind in enumerate("abcdef")
    }
    by_function = {device_of(f"attention/a.py::test[{kind}]", {"kind": kind}) for kind in "abcdef"}
    by_file = {
        device_of(f"python/a.py::test_{i}[{dtype}]", {"dtype": dtype}) for i, dtype in enumerate(("fp32", "bf16"))
    }
    assert len(by_parameters) == len(by_function) == len(by_file) == 1


def test_a_new_test_moves_no_other():
    def dealt(test, parameters):
        return device_of(test, parameters), shard_of(test, parameters, 50)

    before = {test: dealt(test, parameters) for test, parameters in TESTS}
    for test, parameters in [("attention/new.py::test[bf16]", {"dtype": "bf16"}), *reversed(TESTS)]:
        assert dealt(test, parameters) == before.get(test, dealt(test, parameters))


def test_shares_are_of_about_one_size():
    devices = Counter(device_of(test, parameters) for test, parameters in TESTS)
    assert set(devices) == set(DEVICES)
    assert max(devices.values()) < 1.5 * min(devices.values())
    assert {shard_of(test, parameters, 5) for test, parameters in TESTS} == {1, 2, 3, 4, 5}


@pytest.mark.parametrize("text", ["", "3", "0/3", "4/3", "a/3", "1/", "-1/3"])
def test_shards_that_are_none_are_refused(text):
    with pytest.raises(ValueError, match="--shard must be K/N with 1 <= K <= N, got"):
        shards.parse(text)


def test_what_differs_between_processes_is_no_key():
    with pytest.raises(AssertionError, match="differs from process to process"):
        device_of("attention/a.py::test", {"name": object()})
