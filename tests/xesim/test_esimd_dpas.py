"""dpas as ESIMD kernels use it: every pair of element types, 1 to 8 rows, against whole numbers and float64."""

import numpy as np
import pytest
from esimd import DEVICES, Kernels, bf16_bits, bf16_values, checking

BITS = {"s8": 8, "u8": 8, "s4": 4, "u4": 4, "s2": 2, "u2": 2}
PAIRS = [(b, a, "int") for b in BITS for a in BITS] + [("u8", "u8", "unsigned")]


def unpack(dwords: np.ndarray, kind: str) -> np.ndarray:
    """The elements of dwords, lowest bits first."""
    bits = BITS[kind]
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    values = (dwords.view(np.uint32)[..., None] >> shifts & (1 << bits) - 1).astype(np.int64)
    if kind[0] == "s":
        values -= (values >> bits - 1) << bits
    return values.reshape(*dwords.shape[:-1], -1)


def columns_of(dwords: np.ndarray, lanes: int, kind: str) -> np.ndarray:
    """B[k][n] out of its registers: dword n of each holds the next 32 bits of column n."""
    return np.concatenate([unpack(row[:, None], kind).T for row in dwords.reshape(-1, lanes)])


def launch(kernels: Kernels, name: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The kernel's nine results, of 1 to 8 rows and of 8 rows without C."""
    output = kernels.zeros(10 * c.size, c.dtype)
    output.view()[: c.size] = c.ravel()
    kernels.run(name, kernels.array(a), kernels.array(b), output)
    assert np.array_equal(output.view()[: c.size], c.ravel())
    return output.view()[c.size :].reshape(9, *c.shape).copy()


def expected(C: np.ndarray, A: np.ndarray, B: np.ndarray) -> np.ndarray:
    results = []
    for rows in range(1, 9):
        D = C.copy()
        D[:rows] += A[8 - rows :] @ B
        results.append(D)
    return np.array([*results, A @ B])


@pytest.fixture(scope="module", params=DEVICES)
def kernels(request) -> Kernels:
    return Kernels("dpas", request.param)


@pytest.mark.parametrize(("b_type", "a_type", "sums"), PAIRS)
def test_integers(kernels, b_type, a_type, sums):
    rng = np.random.default_rng(1)
    lanes, depth = kernels.lanes, 64 if max(BITS[a_type], BITS[b_type]) <= 4 else 32
    a = rng.integers(0, 1 << 32, (8, depth * BITS[a_type] // 32), np.uint32)
    b = rng.integers(0, 1 << 32, depth * BITS[b_type] // 32 * lanes, np.uint32)
    # Sums wrap: some start next to the end.
    c = rng.integers(0, 1 << 32, (8, lanes), np.uint32)
    A = unpack(a, a_type)
    B = columns_of(b, lanes, b_type)
    name = f"dpas_{b_type}_{a_type}" + ("_unsigned" if sums == "unsigned" else "")
    got = launch(kernels, name, a, b, c)
    assert np.array_equal(got, expected(c.astype(np.int64), A, B).astype(np.uint32))


def float_operands(kernels: Kernels, kind: str):
    """(A, B, C as float64, the dwords of A and B)."""
    rng = np.random.default_rng(2)
    lanes, depth = kernels.lanes, 8 if kind == "tf32" else 16
    A, B = rng.standard_normal((8, depth)), rng.standard_normal((depth, lanes))
    C = rng.standard_normal((8, lanes))
    if kind == "tf32":
        a, b = (x.astype(np.float32).view(np.uint32) & 0xFFFFE000 for x in (A, B))
        return a.view(np.float32).astype(float), b.view(np.float32).astype(float), C, a, b
    encode = bf16_bits if kind == "bf16" else lambda x: x.astype(np.float16).view(np.uint16)
    decode = bf16_values if kind == "bf16" else lambda x: x.view(np.float16).astype(np.float32)
    a, b = encode(A), encode(B)
    pairs = np.ascontiguousarray(b.reshape(depth // 2, 2, lanes).transpose(0, 2, 1)).view(np.uint32)
    return decode(a).astype(float), decode(b).astype(float), C, a.view(np.uint32), pairs


@pytest.mark.parametrize("model", ["exact", "stepwise"])
@pytest.mark.parametrize("kind", ["bf16", "fp16", "tf32"])
def test_floats(kernels, kind, model):
    if kind == "tf32" and kernels.device == "dg2":
        pytest.skip("dg2 has no tf32")
    A, B, C, a, b = float_operands(kernels, kind)
    c = C.astype(np.float32)
    with checking(f"all,dpas={model}"):
        got = launch(kernels, f"dpas_{kind}", a, b, c)
    want = expected(c.astype(float), A, B)
    scale = expected(abs(c).astype(float), abs(A), abs(B))
    steps = 1 if model == "exact" else 8
    assert np.all(abs(got - want) <= steps * 2.0**-24 * scale)


@pytest.mark.parametrize("kind", ["bf16", "fp16"])
def test_sums_of_16_bits(kernels, kind):
    if kernels.device == "dg2":
        pytest.skip("dg2 adds in 32 bits only")
    A, B, C, a, b = float_operands(kernels, kind)
    c = bf16_bits(C) if kind == "bf16" else C.astype(np.float16).view(np.uint16)
    values = bf16_values if kind == "bf16" else lambda bits: bits.view(np.float16)
    got = values(launch(kernels, f"dpas_{kind}_sums", a, b, c)).astype(float)
    want = expected(values(c).astype(float), A, B)
    ulp = 2.0**-8 if kind == "bf16" else 2.0**-11
    assert np.all(abs(got - want) <= abs(want) * ulp + 1e-6)
