"""floor, whole, sin and cos of snippets: values to the last bits, and gradients, against float64.

With one key the LSE is the score, and with q = 0 the score is what the snippet makes of its captures. So it returns how far
it is from what it should be, magnified.
"""

import numpy as np
import pytest
import torch
import xeflash
from arrays import from_array, to_array

DIM, HEADS = 64, 2
# One of these, of an angle that moves with the score and the key.
KINDS = ("sin(a)", "cos(a)", "floor(a)", "whole(a)", "1 / floor(a)")
CHOSEN = "sin(a)"
for kind, text in enumerate(KINDS[1:], 1):
    CHOSEN = f"select(kind == {kind}, {text}, {CHOSEN})"
TEXT = f"auto a = angle[q_idx] * (1 + k_idx % 3 + s); return ({CHOSEN} - want[q_idx]) * scale;"

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, -1e-42, 0.3, -0.3, 1.5, -1.5, 2.5, -2.5, 1e7, -1e7, 1e38, -1e38]
SPECIAL += [2.0**23 - 0.5, 0.5 - 2.0**23, 2.0**31, -(2.0**31), 2.0**31 - 128, 3e9, -3e9]


def of_float64(kind, x):
    x = x.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        small = np.where(abs(x) < 2.0**22, x, x * 0)  # a larger angle counts as 0
        return {
            0: lambda: np.sin(small),
            1: lambda: np.cos(small),
            2: lambda: np.floor(x),
            3: lambda: np.where(np.isnan(x), 0, np.clip(np.trunc(x), -(2.0**31), 2.0**31 - 1)),
            4: lambda: 1 / np.floor(x),
        }[kind]()


def errors(kind, x, scale, where):
    """Returns what the snippet computes in fp32, minus the true values."""
    true = of_float64(kind, x)
    finite = np.isfinite(true)
    want = np.where(finite, true, 0).astype(np.float32)
    captures = {name: to_array(torch.from_numpy(value), where) for name, value in (("angle", x), ("want", want))}
    dtype = torch.float16 if where == "gpu" else torch.float32
    q, k = (to_array(torch.zeros(1, HEADS, n, DIM, dtype=dtype), where) for n in (len(x), 1))
    more = {"score_mod": TEXT, "captures": captures | {"kind": kind, "scale": scale}, "return_lse": True}
    found = from_array(xeflash.attention(q, k, k, **more)[1], where)[0, 0].double().numpy()
    # A score of inf makes a row NaN.
    np.testing.assert_array_equal(found[~finite], np.where(true == np.inf, np.nan, true)[~finite], KINDS[kind])
    return np.where(finite, found / scale + (want - np.where(finite, true, 0)), 0)


def check_values(where):
    random = np.random.default_rng(0)
    for most, bound in ((1, 1e-7), (100, 1e-7), (1e5, 1e-7), (1e6, 1e-7), (2.0**22 - 1, 4e-7)):
        x = random.uniform(-most, most, 3000)
        x[::2] = np.round(x[::2] / (np.pi / 4)) * (np.pi / 4)
        for kind in (0, 1):
            error = abs(errors(kind, x.astype(np.float32), 2.0**22, where))
            assert error.max() <= bound, (KINDS[kind], most, x[error.argmax()], error.max())
    x = np.array(SPECIAL, np.float32)
    for kind, text in enumerate(KINDS):
        error = abs(errors(kind, x, 1.0, where))
        most = 1e-7 if kind < 2 else abs(of_float64(kind, x)) * 2**-23  # one rounding
        assert (error <= np.where(np.isfinite(most), most, 0)).all(), (text, x, error)


def test_values():
    check_values("torch")


@pytest.mark.gpu
@pytest.mark.wide
def test_values_on_gpu(gpu):
    check_values("gpu")


# ---- gradients ----------------------------------------------------------------------------------


def attention_of_float64(q, k, v, angle, kind):
    """As TEXT has it, where floor and whole have no slope."""
    a = angle[:, None] * (1 + torch.arange(k.shape[2]) % 3 + q @ k.mT / DIM**0.5)
    score = (torch.sin, torch.cos, torch.floor, torch.trunc)[kind](a)
    return torch.softmax(score, -1) @ v


def check_gradients(where, dtype, tolerance):
    generator = torch.Generator().manual_seed(0)
    q, k, v, dout = (torch.randn(1, HEADS, n, DIM, generator=generator).to(dtype) for n in (45, 33, 33, 45))
    inputs = [q, k, v, (torch.rand(45, generator=generator) - 0.5) * 40]
    want = torch.zeros(45).to(where)
    for kind, text in enumerate(KINDS[:4]):
        there = [x.detach().to(where).requires_grad_() for x in inputs]
        captures = {"angle": there[3], "want": want, "kind": kind, "scale": 1.0}
        out = xeflash.attention(*there[:3], score_mod=TEXT, captures=captures)
        wide = [x.double().requires_grad_() for x in inputs]
        wide_out = attention_of_float64(*wide, kind)
        found = [out, *torch.autograd.grad(out, there, dout.to(where))]
        expected = [wide_out, *torch.autograd.grad(wide_out, wide, dout.double())]
        for name, x, y in zip(("out", "q", "k", "v", "angle"), found, expected, strict=True):
            error, largest = (x.detach().cpu().double() - y).abs().max().item(), y.abs().max().item()
            assert error <= tolerance * largest, (text, name, error, largest)


@pytest.mark.wide
def test_gradients():
    check_gradients("cpu", torch.float32, 2e-5)


@pytest.mark.gpu
@pytest.mark.xpu
@pytest.mark.wide
def test_gradients_on_gpu(xpu):
    check_gradients("xpu", torch.float16, 2e-2)
