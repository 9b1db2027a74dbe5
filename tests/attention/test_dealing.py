"""The tests that a simulated device is dealt have every choice in them."""

from collections import defaultdict
from dataclasses import fields

import pytest
import test_gpu
import test_gpu_decode
import test_kv_cache
from dealing import DEVICES, device_of, parts_of

CASES = {
    "forward": test_gpu.PAIRWISE,
    "decode": [case for _, case in test_gpu_decode.CASES],
    "cache": test_kv_cache.GPU_CASES,
}
DIMS = ("dim", "dim_v")  # some have one kernel, or two


@pytest.mark.parametrize("name", CASES)
def test_every_device_gets_every_choice(name):
    seen = defaultdict(set)
    for case, part in zip(CASES[name], parts_of((name, case) for case in CASES[name]), strict=True):
        for field in fields(case):
            if field.name not in DIMS:
                seen[field.name, getattr(case, field.name)].add(device_of(part))
    assert not {choice: devices for choice, devices in seen.items() if len(devices) < len(DEVICES)}
