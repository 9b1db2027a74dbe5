"""Calls of the package on a simulated GPU, in processes of their own: what they wait for, what a user sees of a fault."""

import pytest
from conftest import Simulated

pytestmark = pytest.mark.usefixtures("ocloc")

SETUP = """
sys.path.insert(0, "tests")
import dpctl, torch
import usm
import xeflash
from xeflash import attention

queue = dpctl.SyclQueue("level_zero:gpu", property="in_order")
torch.manual_seed(0)
values = [torch.randn(1, 2, 40, 64).half() for _ in range(3)]
expected = torch.nn.functional.scaled_dot_product_attention(*[x.float() for x in values])
"""


def test_a_call_on_arrays_that_may_be_dropped_waits(simulated: Simulated) -> None:
    simulated.python(
        SETUP
        + """
attention(*[usm.UsmArray(x, queue) for x in values])
assert len(sim.last_launches()) == 1
""",
        "bmg",
    )


def test_a_stray_access_is_an_exception_and_the_next_call_works(simulated: Simulated) -> None:
    done = simulated.python(
        SETUP
        + """
arrays = [usm.UsmArray(x, queue) for x in values]
good = dict(arrays[1].__sycl_usm_array_interface__)
arrays[1].__sycl_usm_array_interface__ = {**good, "shape": (1, 2, 400, 64), "strides": (51200, 25600, 64, 1)}
longer = usm.UsmArray(torch.zeros(1, 2, 400, 64).half(), queue)
try:
    attention(arrays[0], arrays[1], longer)
    raise SystemExit("no exception")
except RuntimeError as error:
    print(error)
arrays[1].__sycl_usm_array_interface__ = good
out = usm.read(attention(*arrays)).float().reshape(expected.shape)
assert (out - expected).abs().max() < 2e-3
""",
        "pvc",
    )
    assert "flash_fwd" in done.stdout and "the end of the 10240-byte device allocation" in done.stdout


@pytest.mark.parametrize("device", ("pvc", "bmg", "dg2"))
def test_what_a_gpu_cannot_do_is_refused_before_a_launch(simulated: Simulated, device: str) -> None:
    simulated.python(
        SETUP
        + """
odd = [usm.UsmArray(torch.randn(1, 2, 40, 60).half(), queue) for _ in range(3)]
try:
    attention(*odd)
    raise SystemExit("no exception")
except NotImplementedError as error:
    assert "multiple of 8" in str(error) and "60" in str(error), error
assert not sim.last_launches()
""",
        device,
    )
