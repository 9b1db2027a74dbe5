"""Registers that are picked at run time, spills to memory, and both register files, against numpy."""

import re

import numpy as np
import pytest
from esimd import DEVICES, Kernels, checking, last_record


@pytest.fixture(scope="module", params=DEVICES)
def device(request) -> str:
    return request.param


@pytest.fixture(scope="module", params=[128, 256])
def kernels(request, device) -> Kernels:
    return Kernels("registers", device, registers=request.param)


@pytest.mark.parametrize("seed", range(5))
def test_table_in_registers(kernels, seed):
    rng = np.random.default_rng(seed)
    values, index = rng.standard_normal(64).astype(np.float32), rng.permutation(64)[:16].astype(np.uint32)
    out = kernels.zeros(80, np.float32)
    kernels.run("table", kernels.array(values), kernels.array(index), out)
    want = values.copy()
    want[index] *= 2
    want[(index[0] & 31) + np.arange(8)] += np.float32(100)
    want[index[1]] = want[index[2]] + np.float32(1000)
    assert np.array_equal(out.view(), np.concatenate([values[index], want]))


@pytest.mark.parametrize("kind", [np.uint8, np.uint16])
@pytest.mark.parametrize("seed", range(5))
def test_narrow_tables(kernels, kind, seed):
    rng = np.random.default_rng(seed)
    values, index = rng.integers(0, 256, 64, kind), rng.integers(0, 64, 16, np.uint32)
    out = kernels.zeros(80, kind)
    kernels.run(f"table_u{8 * kind().itemsize}", kernels.array(values), kernels.array(index), out)
    want = values.copy()
    want[(index[0] & 31) + 2 * np.arange(4)] += kind(7)
    assert np.array_equal(out.view(), np.concatenate([values[index], want]))


def test_private_array(kernels):
    n = 50
    index = np.random.default_rng(0).integers(0, 64, n + 1, np.uint32)
    out = kernels.zeros(64, np.uint32)
    kernels.run("array", kernels.array(index), out, np.int32(n))
    want = 3 * np.arange(64, dtype=np.uint32)
    for i in range(n):
        want[index[i]] += want[index[i + 1]]
    assert np.array_equal(out.view(), want)


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_more_values_than_registers(kernels, steps):
    rng = np.random.default_rng(1)
    values = rng.uniform(-0.5, 0.5, (9, 256)).astype(np.float32)
    out = kernels.zeros(values.size, np.float32)
    kernels.run("many", kernels.array(values), out, np.int32(steps))
    want = values.astype(np.float64)
    for _ in range(steps):
        for k in range(9):
            want[k] = want[k] * 0.5 + want[(k + 1) % 9] * want[(k + 7) % 9]
    np.testing.assert_allclose(out.view().reshape(want.shape), want, rtol=1e-5, atol=1e-6)
    record = last_record()
    assert record["grf"] == kernels.registers
    # 9 KiB of values: the files hold 4 KiB and 8 KiB on dg2, 8 KiB and 16 KiB elsewhere.
    spills = kernels.device == "dg2" or kernels.registers == 128
    assert (record["spill_bytes"] > 0) == spills
    assert (record["scratch_written"] > 0) == (record["scratch_read"] > 0) == spills


def test_spills_are_a_fault_if_they_are_to_be(kernels):
    arguments = kernels.array(np.zeros((9, 256), np.float32)), kernels.zeros(9 * 256, np.float32), np.int32(1)
    with checking("all,spills"):
        if kernels.device == "dg2" or kernels.registers == 128:
            text = kernels.fault("many", *arguments)
            assert re.search(
                r"kernel __sycl_kernel_many: not all of its values are in registers: .* [1-9]\d* bytes of", text
            )
        else:
            kernels.run("many", *arguments)
