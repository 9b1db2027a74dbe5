"""A matrix product and attention on dpas, as ESIMD kernels on each device, against float64."""

import numpy as np
import pytest
from esimd import DEVICES, Kernels, bf16_bits, bf16_values, checking, last_record

DPAS = pytest.mark.parametrize("dpas", ["exact", "stepwise"])


@pytest.fixture(scope="module", params=DEVICES)
def device(request) -> str:
    return request.param


@pytest.fixture(scope="module", params=[128, 256])
def kernels(request, device) -> Kernels:
    return Kernels("algorithms", device, registers=request.param)


def normal(kernels: Kernels, rng: np.random.Generator, rows: int, columns: int):
    """(array on the device, its values) in bf16."""
    bits = bf16_bits(rng.standard_normal((rows, columns)))
    return kernels.array(bits), bf16_values(bits).astype(float)


@DPAS
@pytest.mark.parametrize(("m", "n", "k"), [(8, 32, 16), (24, 48, 80), (64, 64, 256)])
def test_matrix_product(kernels, m, n, k, dpas):
    rng = np.random.default_rng(m)
    (a, A), (b, B) = normal(kernels, rng, m, k), normal(kernels, rng, k, n)
    c = kernels.zeros(m * n, np.float32)
    with checking(f"all,dpas={dpas}"):
        kernels.run("gemm", a, b, c, np.int32(m), np.int32(n), np.int32(k), groups=m // 8)
    np.testing.assert_allclose(c.view().reshape(m, n), A @ B, rtol=1e-5, atol=1e-5 * np.sqrt(k))
    record = last_record()
    assert record["dpas_macs"] == m * n * k
    assert record["dpas_useful"] == 1.0
    assert (record["block2d_read"] > 0) == (kernels.device != "dg2")


@DPAS
@pytest.mark.parametrize(("queries", "length"), [(8, 16), (23, 1), (40, 33), (64, 127)])
def test_attention(kernels, queries, length, dpas):
    rng = np.random.default_rng(length)
    (q, Q), (k, K), (v, V) = (normal(kernels, rng, rows, 32) for rows in (queries, length, length))
    scale = 1 / np.sqrt(32)
    out = kernels.zeros(queries * 32, np.float32)
    groups = -(-queries // 8)
    with checking(f"all,dpas={dpas},seed={length}"):
        sizes = np.int32(queries), np.int32(length), np.float32(scale)
        kernels.run("attention", q, k, v, out, *sizes, groups=groups)
    S = scale * Q @ K.T
    P = np.exp(S - S.max(1, keepdims=True))
    want = P / P.sum(1, keepdims=True) @ V
    # P is rounded to bf16.
    bound = 2.0**-8 * (P / P.sum(1, keepdims=True) @ abs(V)) + 1e-5
    assert np.all(abs(out.view().reshape(want.shape) - want) <= bound)
    assert last_record()["spill_bytes"] == 0 or kernels.device == "dg2"
