"""Snippets of functions, as text: what flex_attention keeps, refuses, and says of narrow integers. No kernel runs."""

from __future__ import annotations

import pytest
import torch
from xeflash.integrations.flex import Refused, flex_attention
from xeflash.integrations.flex.kept import snippet_of

FACTOR = torch.tensor(0.5, requires_grad=True)
SLOPES = torch.rand(4, requires_grad=True)
TABLE = torch.rand(4)
IDS = torch.randint(0, 255, (8,), dtype=torch.uint8)
CPU = torch.device("cpu")


class Odd:
    """An object that has no key."""

    __slots__ = ("factor",)

    def __init__(self):
        self.factor = torch.tensor(0.5, requires_grad=True)


ODD = Odd()


def text(change):
    return snippet_of(change, True, CPU).snippet.text


def test_a_function_that_names_torch_is_kept():
    def change(s, b, h, q, k):
        return torch.tanh(s) * FACTOR

    found = snippet_of(change, True, CPU)
    assert found.snippet is snippet_of(change, True, CPU).snippet
    assert found.tensors[0] is FACTOR


def test_a_scalar_of_a_function_without_a_key_stays_a_tensor():
    assert text(lambda s, b, h, q, k: s * ODD.factor) == "(s * a0)"
    assert text(lambda s, b, h, q, k: s * torch.tensor(0.25)) == "(s * n0)"


@pytest.mark.parametrize("cut", ["detach", "data", "no_grad"])
def test_gradients_through_a_cut_are_refused(cut):
    def change(s, b, h, q, k):
        if cut == "no_grad":
            with torch.no_grad():
                return s + SLOPES[h] * (q - k)
        return s + (SLOPES.detach() if cut == "detach" else SLOPES.data)[h] * (q - k)

    x = torch.randn(1, 4, 8, 64)
    with pytest.raises(Refused, match="throughout"):
        flex_attention(x, x, x, change)


def test_narrow_integers_wrap_around():
    assert "&" in text(lambda s, b, h, q, k: s + (IDS[q] - IDS[k]))
    assert "&" in text(lambda s, b, h, q, k: s + (q - k).to(torch.int8))
    assert "&" not in text(lambda s, b, h, q, k: s + (IDS[q].int() - IDS[k]))


def test_any_of_one_number_is_a_bool():
    assert "!= 0" in text(lambda s, b, h, q, k: s + torch.stack([q]).any())


def long(s, b, h, q, k):
    for _ in range(3000):
        s = s + q
    return s


@pytest.mark.parametrize(
    "change",
    [
        lambda s, b, h, q, k: (s * 1j).real,
        lambda s, b, h, q, k: torch.round(s, decimals=2),
        lambda s, b, h, q, k: (SLOPES * s)[9],
        lambda s, b, h, q, k: torch.nn.functional.relu(TABLE, inplace=True)[h],
        lambda s, b, h, q, k: torch.add(TABLE, 1, out=TABLE)[h],
        long,
    ],
    ids=["complex", "decimals", "beyond-an-end", "inplace", "out", "long"],
)
def test_refusals(change):
    with pytest.raises(Refused, match="score_mod must be what a kernel can say"):
        text(change)


def test_autocast_is_nothing_to_a_function():
    m = torch.randn(4, 4)

    def change(s, b, h, q, k):
        return s + (m[h] @ m @ m[q % 4])

    with torch.autocast("cpu", torch.bfloat16):
        nodes = snippet_of(change, True, CPU).snippet.traced.graph.nodes
    assert not any(node.meta["val"].dtype is torch.bfloat16 for node in nodes if "val" in node.meta)


def test_a_transform_refuses_a_new_function_and_keeps_no_refusal():
    w = torch.randn(3, 8)

    def of(x):
        return snippet_of(lambda s, b, h, q, k: s + torch.erf(x[k]), True, CPU).snippet.text

    with pytest.raises(NotImplementedError, match="vmap"):
        torch.vmap(lambda x: torch.tensor(len(of(x))))(w)
    assert of(w[0]) == "(s + a0(k_idx))"


def test_a_function_is_traced_in_inference_mode():
    def change(s, b, h, q, k):
        return s + SLOPES[h] * torch.exp(SLOPES[0] * k)

    with torch.inference_mode():
        assert snippet_of(change, True, CPU).snippet is snippet_of(change, True, CPU).snippet
    assert len(snippet_of(change, True, CPU).tensors) == 1


def test_a_cut_is_seen_without_gradients_too():
    def change(s, b, h, q, k):
        with torch.no_grad():
            return s + SLOPES[h]

    with torch.no_grad():
        assert snippet_of(change, True, CPU).snippet.traced.cuts


def test_equal_values_have_the_gradients_of_torch():
    """abs has none at 0; the bound of clamp has none; a maximum's operands share it."""
    assert text(lambda s, b, h, q, k: s.clamp(min=3)) == "max(n0, s)"
    assert text(lambda s, b, h, q, k: s.clamp(max=3)) == "min(n0, s)"
    assert text(lambda s, b, h, q, k: abs(s)) == "select((s == 0.0f), 0.0f, abs(s))"
    assert text(lambda s, b, h, q, k: torch.relu(s)) == "max(s, 0.0f)"
    both = text(lambda s, b, h, q, k: torch.maximum(s, SLOPES[h]))
    assert both.endswith("return select((s == t0), ((s + t0) * 0.5f), max(s, t0));")
    assert text(lambda s, b, h, q, k: s + torch.maximum(q, k)) == "(s + max(q_idx, k_idx))"


@pytest.mark.parametrize(("name", "value"), [("block_mask", TABLE), ("return_aux", True), ("kernel_options", {"A": 1})])
def test_arguments_of_other_types_are_refused(name, value):
    x = torch.randn(1, 4, 8, 64)
    with pytest.raises((TypeError, ValueError), match=f"flex_attention: {name} must be"):
        flex_attention(x, x, x, **{name: value})


def test_empty_tensors_are_refused():
    x, empty = torch.randn(1, 4, 8, 64), torch.zeros(0)
    with pytest.raises(Refused, match="captured tensors must not be empty"):
        flex_attention(x, x, x, lambda s, b, h, q, k: s + empty[k])
