"""New keys and values that servers have written into slots of a cache: which rows change, and that nothing is asked."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from xeflash.integrations._pages import write_slots

PAGES, PAGE, HEADS, DIM = 4, 16, 2, 8


class Operators(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.overloadpacket.__name__)
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("slots", [[5, -1, 63, 16, -1], [-1, -1, 7], [-1, -1], [2, 1, 0]])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
def test_rows_of_slots_are_written_and_no_others(slots, dtype):
    torch.manual_seed(0)
    new, cache = torch.randn(len(slots) + 2, HEADS, DIM), torch.randn(PAGES, PAGE, HEADS, DIM).to(dtype)
    want = cache.float().flatten(0, 1)
    for row, slot in enumerate(slots):
        if slot >= 0:
            want[slot] = (new[row] / 0.5).to(dtype).float() if dtype is not torch.float32 else new[row]
    write_slots("f", new, cache, torch.tensor(slots), 0.5)
    assert torch.equal(cache.float().flatten(0, 1), want)


def test_no_value_goes_to_the_host():
    """It would wait for a device, and cannot be recorded in a graph."""
    new, cache, slots = torch.randn(3, HEADS, DIM), torch.zeros(PAGES, PAGE, HEADS, DIM), torch.tensor([-1, 5, 7])
    with Operators() as seen:
        write_slots("f", new, cache, slots)
    assert "index_put_" in seen.names and not seen.names & {"_local_scalar_dense", "nonzero", "equal", "is_nonzero"}
