"""Local memory and barriers of ESIMD work-groups against numpy, in several orders of the threads."""

from dataclasses import fields

import numpy as np
import pytest
from esimd import DEVICES, Kernels, checking, last_record
from xeflash.sim import LaunchRecord

SEEDS = pytest.mark.parametrize("seed", range(4))


@pytest.fixture(scope="module", params=DEVICES)
def kernels(request) -> Kernels:
    return Kernels("groups", request.param)


def words(count: int) -> np.ndarray:
    return np.random.default_rng(8).integers(0, 1 << 32, count, np.uint32)


@SEEDS
def test_rows_become_columns(kernels, seed):
    values, out = words(3 * 256), kernels.zeros(3 * 256, np.uint32)
    with checking(f"all,seed={seed}"):
        kernels.run("transpose", kernels.array(values), out, groups=3, local=16)
    assert np.array_equal(out.view().reshape(3, 16, 16), values.reshape(3, 16, 16).transpose(0, 2, 1))
    record = last_record()
    assert record["barriers"] == 3 * 16
    assert record["slm_written"] == record["slm_read"] == values.nbytes


def test_python_and_the_simulator_agree_on_the_fields_of_a_record(kernels):
    kernels.run("transpose", kernels.array(words(256)), kernels.zeros(256, np.uint32), groups=1, local=16)
    assert list(last_record()) == [field.name for field in fields(LaunchRecord)]


@SEEDS
@pytest.mark.parametrize("threads", [1, 2, 16, 32])
def test_sum_by_halves(kernels, threads, seed):
    values, out = words(5 * threads), kernels.zeros(5, np.uint32)
    with checking(f"all,seed={seed}"):
        kernels.run("tree_sum", kernels.array(values), out, groups=5, local=threads)
    assert np.array_equal(out.view(), values.reshape(5, threads).sum(1, dtype=np.uint32))


def test_elements_of_every_width(kernels):
    rng = np.random.default_rng(9)
    order = rng.permutation(16).astype(np.uint32)
    arguments, pairs = [], []
    for kind in (np.uint8, np.uint16, np.uint32, np.uint64):
        values = rng.integers(0, np.iinfo(kind).max, 16, kind)
        source, target = kernels.array(values), kernels.zeros(16, kind)
        arguments += [source, target]
        pairs.append((values, target))
    kernels.run("slm_widths", *arguments, kernels.array(order))
    for values, target in pairs:
        want = np.zeros_like(values)
        want[order] = values
        assert np.array_equal(target.view(), want)


@SEEDS
def test_split_barrier(kernels, seed):
    values, out = words(256), kernels.zeros(256, np.uint32)
    with checking(f"all,seed={seed}"):
        kernels.run("split", kernels.array(values), out, local=16)
    rows = values.reshape(16, 16)
    assert np.array_equal(out.view().reshape(16, 16), rows * np.uint32(3) + np.roll(rows, -1, 0))


@SEEDS
def test_named_barriers(kernels, seed):
    if kernels.device == "dg2":
        pytest.skip("dg2 has no named barriers")
    values, out = words(32), kernels.zeros(36, np.uint32)
    with checking(f"all,seed={seed}"):
        kernels.run("named", kernels.array(values), out, local=4)
    want = np.concatenate([values * np.uint32(2) + np.uint32(1), values[[2, 3, 0, 1]]])
    assert np.array_equal(out.view(), want)


@SEEDS
@pytest.mark.parametrize("steps", [1, 2, 3, 10])
def test_producer_and_consumer(kernels, steps, seed):
    if kernels.device == "dg2":
        pytest.skip("dg2 has no named barriers")
    values, out = words(16 * steps), kernels.zeros(16, np.uint32)
    with checking(f"all,seed={seed}"):
        kernels.run("pipeline", kernels.array(values), out, np.int32(steps), local=2)
    want = np.zeros(16, np.uint32)
    for row in values.reshape(steps, 16):
        want = want * np.uint32(3) + row
    assert np.array_equal(out.view(), want)


def test_a_listing_says_how_often_each_instruction_ran(kernels):
    values, out = words(3 * 256), kernels.zeros(3 * 256, np.uint32)
    kernels.run("transpose", kernels.array(values), out, groups=3, local=16)
    assert last_record()["listing"] == [], "it is asked for"
    with checking("all,listing"):
        kernels.run("transpose", kernels.array(values), out, groups=3, local=16)
    record = last_record()
    addresses, counts, classes, texts = zip(*record["listing"], strict=True)
    assert list(addresses) == sorted(set(addresses))
    assert sum(counts) == record["instructions"] and min(counts) > 0
    for name in ("dpas", "math", "moves", "float_alu", "integer_alu", "control", "sync", "sends"):
        assert sum(n for n, found in zip(counts, classes, strict=True) if found == name) == record[name]
    assert counts[0] == 3 * 16, "each thread begins at the first one"
    assert any("store.slm" in text for text in texts) and any("sync.bar" in text for text in texts)
