"""What random calls are judged by can tell right from wrong."""

import ctypes
import os
import subprocess
import sys
from random import Random

import numpy as np
import pytest
import torch
import xeflash
from memory import Layout, draw_layout, place

from .case import Case, Wrong, call_of, judge_refusal, perform
from .generate import make
from .run import REPOSITORY

DRAWN = """
import hashlib, re, tests.fuzz
from tests.fuzz.generate import make
text = re.sub(" at 0x[0-9a-f]+", "", "".join(str(make(3, i)) for i in range(300)))
print(hashlib.sha256(text.encode()).hexdigest())
"""


def test_a_case_follows_from_its_seed_and_number():
    """Whatever order Python gives to a set in the process that draws it."""
    runs = [
        subprocess.run([sys.executable, "-c", DRAWN], cwd=REPOSITORY, capture_output=True, text=True, check=True,
                       env=os.environ | {"PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    ]  # fmt: skip
    assert runs[0].stdout == runs[1].stdout


GAPS = Layout(gaps=(3, 1), order=1, shift=8)


@pytest.mark.parametrize("beyond", ["before", "behind"])
def test_pages_around_arrays_may_not_be_read(beyond):
    script = f"""
import ctypes, torch, tests.fuzz
from memory import Layout, place
array = place(torch.ones(2, 5), "torch", Layout(at_end={beyond == "behind"})).given
assert ctypes.c_float.from_address(array.data_ptr()).value == 1
print("there", flush=True)
ctypes.c_float.from_address(array.data_ptr() + {-4 if beyond == "before" else 40}).value
"""
    run = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert (run.stdout, run.returncode) == ("there\n", -11), run.stderr


@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_arrays_of_any_layout_have_their_values(kind):
    random = Random(0)
    for _ in range(300):
        shape = [random.choice((0, 1, 2, 5)) for _ in range(random.randint(1, 5))]
        values = torch.randn(shape)
        layout = draw_layout(random, kind, distinct=True)
        array = place(values, kind, layout)
        assert torch.equal(array.values(), values), layout
        assert np.array_equal(np.asarray(array.given), values.numpy()), layout


def written_at(place_of, at):
    """A case whose call writes a byte `at` bytes from the first element of an array."""
    array = place(torch.ones(2, 5), "torch", GAPS)

    def call(x):
        ctypes.c_byte.from_address(x.data_ptr() + at).value = 3

    return Case("f", {"x": array}, lambda result: None, call=call, written={"x": place_of})


def test_what_is_not_to_be_written_is_noticed():
    perform(written_at(..., 0))
    perform(written_at((0, slice(5)), 19))
    for index, at in ((..., -1), (..., 20), ((1, slice(5)), 3), (None, 0)):
        with pytest.raises(Wrong, match=r"has changed: 1 bytes"):
            perform(written_at(index, at))


def test_wrong_results_and_refusals_are_noticed():
    cases = (make(0, number, width="narrow") for number in range(1000))

    def is_told_by_its_scale(case):
        given = case.arguments
        return given["k"].shape[1] > 30 and all(given[name].values().float().std() > 0.5 for name in "qk")

    told = (x for x in cases if x.function == "flash_attn_func" and not x.wrong and is_told_by_its_scale(x))
    case = next(told)
    assert perform(case) == "right"
    for scale, text in ((3.0, "limit"), (float("nan"), "a valid call was refused")):
        case.call = lambda scale=scale, **given: xeflash.flash_attn_func(**given | {"softmax_scale": scale})
        with pytest.raises(Wrong, match=text):
            perform(case)


def test_wrong_gradients_are_noticed():
    cases = (make(0, number, width="narrow") for number in range(4000))
    large = (
        x
        for x in cases
        if {"q", "dout"} <= x.arguments.keys() and min(x.arguments[name].shape[1] for name in "qk") > 30
    )
    case = next(x for x in large if 0.5 < x.arguments["q"].values().abs().max() < 9)
    assert perform(case) == "right"
    right = case.call
    for change, text in ((1.1, "limit"), (float("nan"), "not finite")):

        def wrong(change=change, **given):
            once = {name: x * change for name, x in right(**given)[0].items()}
            return once, once

        case.call = wrong
        with pytest.raises(Wrong, match=text):
            perform(case)


@pytest.mark.parametrize(
    ("function", "change"),
    [
        ("matmul_softmax", lambda out: out * 1.05),
        ("linear_cross_entropy", lambda found: found * 1.01),
        ("linear_log_prob", lambda found: found * 1.01),
        ("linear_top_k", lambda found: (found[0] * 1.01, found[1])),
        ("linear_top_k", lambda found: (found[0], found[1] * 0)),
        ("linear_argmax", lambda token: (token + 1) % 2),
        ("sample", lambda token: (token + 1) % 2),
        ("linear_sample", lambda token: (token + 1) % 2),
        ("gradients of linear", lambda found: tuple([x * 1.01 for x in once] for once in found)),
        ("gradients of matmul_softmax", lambda found: tuple([x * 1.3 for x in once] for once in found)),
        ("gradients of linear_cross_entropy", lambda found: tuple([x * 1.3 for x in once] for once in found)),
        ("gradients of linear_log_prob", lambda found: tuple([x * 1.3 for x in once] for once in found)),
    ],
)
def test_wrong_products_are_noticed(function, change):
    """By some of the first cases, as others are told by nothing: those of zeros, or of one token."""
    cases = (make(0, number, kinds=("torch",), width="narrow") for number in range(500))
    cases = (x for x in cases if x.function == function and not x.wrong and x.way == "direct")
    cases = [x for x in cases if "out" not in x.arguments][:6]
    assert len(cases) > 3
    noticed = 0
    for case in cases:
        assert perform(case) == "right"
        right = case.call or call_of(function, case.way)
        case.call = lambda right=right, **given: spoilt(right(**given), change)
        try:
            perform(case)
        except Wrong:
            noticed += 1
    assert noticed >= len(cases) / 3


def spoilt(result, change):
    """A result with a change; the LSE that comes with a loss stays."""
    if isinstance(result, tuple) and isinstance(result[0], torch.Tensor) and result[0].dim() < result[1].dim():
        return change(result[0]), result[1]
    return change(result)


@pytest.mark.parametrize(
    ("text", "clear"),
    [
        ("f: x must be 3, got 4", True),
        ("x must be 3, got 4", False),
        ("f: must be 3", False),
        ("g: x must be 3", False),
        ("f: x: incompatible function arguments", False),
    ],
)
def test_unclear_refusals_are_noticed(text, clear):
    case = Case("f", {}, lambda result: None, wrong="x", names=frozenset("x"))
    assert (judge_refusal(case, ValueError(text)) == "") is clear
