"""Types that numpy lacks, against torch's."""

import numpy as np
import pytest
import torch
from xeflash.selftest.arrays import TorchArrays
from xeflash.selftest.values import Values

TYPES = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_round_as_torch_rounds_them(dtype):
    numbers = torch.randn(20000) * torch.exp2(torch.randint(-12, 6, (20000,)))
    want = numbers.to(getattr(torch, dtype))
    got = Values.of(numbers.numpy(), dtype)
    assert np.array_equal(got.numbers, want.double().numpy())


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_every_code_of_8_bits(dtype):
    codes = np.arange(256, dtype=np.uint8)
    values = Values(codes, dtype)
    want = torch.from_numpy(codes).view(getattr(torch, dtype)).double().numpy()
    assert np.array_equal(values.numbers, want, equal_nan=True)
    finite = np.isfinite(want)
    assert np.array_equal(Values.of(want[finite], dtype).bits, codes[finite])


@pytest.mark.parametrize("dtype", TYPES)
def test_spacing_is_the_distance_to_the_next_number(dtype):
    x = Values.of(np.array([1.0, 1.5, 3.0, 0.0, 100.0]), dtype)
    width = x.bits.dtype.itemsize
    bits = x.bits.view(f"u{width}") + 1
    following = Values(bits.astype(f"u{width}").view(x.bits.dtype), dtype)
    assert np.array_equal(following.numbers - x.numbers, x.spacing())


def test_int8_is_rounded_and_bounded():
    assert Values.of([-300.0, -0.6, 2.5, 127.4], "int8").numbers.tolist() == [-127, -1, 2, 127]


@pytest.mark.parametrize("dtype", [*TYPES, "int8", "int32", "bool"])
def test_torch_holds_the_same_bits(dtype):
    values = Values.of(np.array([[0, 1], [1, 0]]), dtype)
    arrays = TorchArrays("cpu")
    tensor = arrays.put(values)
    assert tensor.dtype == getattr(torch, dtype) and tensor.tolist() == [[0, 1], [1, 0]]
    back = arrays.get(tensor)
    assert back.dtype == dtype and np.array_equal(back.bits, values.bits)
