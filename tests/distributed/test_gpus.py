"""Two ranks that have a GPU each: transports, and attention, forward and backward, against one process in float64."""

import attending
import gpu_ranks
import pytest
import torch
from attending import over

pytestmark = [pytest.mark.gpu, pytest.mark.xpu]

WAYS = ("ring", "all_gather", "all_to_all")
CASES = [over(how, dtype="bf16", chunk=16, dlse=True, batch=1) for how in WAYS]


@pytest.fixture(autouse=True)
def two(xpu):
    if torch.xpu.device_count() < gpu_ranks.WORLD:
        pytest.skip("there is one GPU, and each rank needs one of its own")


def check(group, device, sizes):
    from xeflash.distributed import check_transport

    found = check_transport(group, sizes=sizes)
    return found.device, found.ok, str(found)


def attend(group, device, cases):
    return [attending.attend(group, case, device) for case in cases]


def test_transports_deliver():
    for device, ok, text in gpu_ranks.run(check, (1, 1023)):
        assert device == "xpu" and ok, text


def test_each_way_matches_one_process():
    found = gpu_ranks.run(attend, CASES)
    for case, *runs in zip(CASES, *found, strict=True):
        attending.judge(case, runs, kind="xpu")
