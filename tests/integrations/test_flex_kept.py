"""What is kept of functions that flex_attention has seen, and that a result always follows what they read now.

All functions here say the same with other numbers, so that they share the kernel of test_flex.py.
"""

from __future__ import annotations

import gc
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import flex_hidden_places  # noqa: F401
import pytest
import run_report
import torch
from flex_examples import Captures, Sizes
from flex_places import PLACES, Called, changes
from flex_reference import Case, check
from test_flex import attend
from torch import Tensor, nn

SLOPES = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
KEPT = torch.rand(2, 53, generator=torch.Generator().manual_seed(2)) < 0.8
REACH = 20

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def mask(b, h, q, k):
    return KEPT[b, k] & (q + REACH >= k)


def right(score_mod: Any, mask_mod: Any = mask, grad: bool = False) -> Tensor:
    """The result, which is checked."""
    case = Case(lambda z, of: (score_mod, mask_mod))
    with torch.enable_grad() if grad else torch.no_grad():
        found = case.by(attend, Captures(), grad)
    check("kept", case, found)
    return found["out"]


def kernels() -> set[str]:
    return set(run_report.kernels_of_this_test())


# ---- where functions have what they read ----------------------------------------------------------


@pytest.mark.parametrize("where", PLACES)
def test_results_follow_what_is_read_now(where):
    score_mod, put = PLACES[where]()
    found, first = [], set()
    for slope, factor in ((SLOPES[0], 0.1), (SLOPES[0], 0.3), (SLOPES[1], 0.3), (SLOPES[0], 0.1)):
        put(slope, factor)
        found.append(right(score_mod))
        assert (first := first or kernels()) == kernels()
    assert torch.equal(found[0], found[3])
    assert not any(torch.allclose(found[i], found[i + 1], atol=1e-3) for i in range(3))


# ---- functions that are made anew ---------------------------------------------------------------


def test_functions_made_anew_share_a_kernel():
    def windows(reach):
        return lambda b, h, q, k: KEPT[b, k] & (q + reach >= k)

    first = set()
    for reach in (3, 7, 20, 52):
        right(changes(SLOPES[0] * 1, reach / 50), windows(reach))
        assert (first := first or kernels()) == kernels()


def test_a_tensor_that_died_leaves_nothing():
    """Another one often has its id, and its memory."""
    case = Case(lambda z, of: (None, mask))
    for i in range(12):
        slope = torch.full((4,), 0.1 * i)
        found = right(changes(slope))
        again = attend(case.q, case.k, case.v, changes(slope), mask)[0]
        assert torch.equal(found, again)
        died = weakref.ref(slope)
        del slope
        gc.collect()
        assert died() is None, "what is kept holds a tensor"


@pytest.mark.wide
def test_integers_of_64_bits_that_died_leave_nothing():
    for i in range(12):
        document = (torch.arange(53) + i) // (2 + i)
        right(None, lambda b, h, q, k, document=document: document[q] == document[k])
        died = weakref.ref(document)
        del document
        gc.collect()
        assert died() is None, "what is kept holds a tensor"


def test_an_object_that_died_leaves_nothing():
    for i in range(12):
        right(Called(SLOPES[i % 2], 0.02 * i + 0.01))
        gc.collect()


def test_functions_of_other_lines_are_other_functions():
    """Code that differs in its constants, or its names, only."""
    scope = {"SLOPE": SLOPES[0], "OTHER": SLOPES[1]}
    for name in ("SLOPE", "OTHER"):
        for factor in (0.1, 0.3):
            right(eval(f"lambda s, b, h, q, k: s + {name}[h] * (k - q) * {factor}", scope))


def test_code_that_is_replaced_counts():
    change = changes(SLOPES[0])

    def other(slope, factor):
        return lambda s, b, h, q, k: s + slope[h] * (k - q) * (factor * 3)

    before = right(change)
    change.__code__ = other(None, None).__code__
    assert not torch.allclose(right(change), before, atol=1e-3)


# ---- masks --------------------------------------------------------------------------------------


def test_a_mask_in_another_mask_follows():
    kept, reach = KEPT.clone(), 20

    def inner(b, h, q, k):
        return kept[b, k]

    def outer(b, h, q, k):
        return inner(b, h, q, k) & (q + reach >= k)

    change = changes(SLOPES[0])
    found = [right(change, outer)]
    reach = 3
    found.append(right(change, outer))
    kept[:, ::3] = False
    found.append(right(change, outer))
    kept = ~kept
    found.append(right(change, outer))
    reach = 30
    found.append(right(change, lambda b, h, q, k: inner(b, h, q, k) & (q + reach >= k)))
    assert all(not torch.equal(found[i], found[i + 1]) for i in range(4))


# ---- tensors that change ------------------------------------------------------------------------

IN_PLACE: dict[str, Callable[[Tensor], Any]] = {
    "operation": lambda x: x.mul_(2),
    "element": lambda x: x.__setitem__(1, 5.0),
    "view": lambda x: x[1:].neg_(),
    "copy": lambda x: x.copy_(SLOPES[1]),
    "data": lambda x: x.data.mul_(2),  # torch counts no version
    "other-data": lambda x: setattr(x, "data", SLOPES[1].clone()),
    "set": lambda x: x.set_(SLOPES[1].clone()),
    "numpy": lambda x: x.numpy().__setitem__(2, 7.0),
    "no-grad": lambda x: torch.add(x, 1, out=x),
}


@pytest.mark.parametrize("how", IN_PLACE)
def test_results_follow_a_tensor_that_is_written_to(how):
    slope = SLOPES[0].clone()
    change = changes(slope)
    before = right(change)
    IN_PLACE[how](slope)
    assert not torch.allclose(right(change), before, atol=1e-3)


def test_results_follow_the_base_of_a_view():
    base = SLOPES.clone()
    change = changes(base[1])
    before = right(change)
    base.mul_(3)
    assert not torch.allclose(right(change), before, atol=1e-3)


@pytest.mark.wide
def test_results_follow_integers_of_64_bits():
    """Which kernels read in 32."""
    reach = torch.tensor([20, 2**62], dtype=torch.int64)

    def mask(b, h, q, k):
        return q + reach[b] >= k

    change = changes(SLOPES[0])
    before, first = right(change, mask), kernels()
    reach[1] = 3
    assert not torch.equal(right(change, mask), before) and kernels() == first


@pytest.mark.wide
def test_results_follow_a_table_that_torch_computes():
    rate = torch.tensor([0.1, 0.2, 0.3, 0.4])

    def change(s, b, h, q, k):
        return s + torch.lgamma(q * rate[h] + 1) * torch.erf(k * 0.1)

    before = right(change)
    rate.mul_(2)
    middle = right(change)
    rate = torch.tensor([0.3, 0.1, 0.1, 0.2])
    assert not torch.equal(before, middle) and not torch.equal(middle, right(change))


@pytest.mark.wide
def test_two_names_of_a_tensor_may_part():
    one = other = SLOPES[0]

    def change(s, b, h, q, k):
        return s + one[h] * (k - q) * 0.1 + other[h] * q * 0.1

    right(change)
    other = SLOPES[1]
    right(change)
    one = other
    right(change)


@pytest.mark.wide
def test_shapes_may_change():
    table = torch.randn(4)

    def change(s, b, h, q, k):
        return s + table[(q + k) % table.shape[0]] * len(table)

    for size in (4, 7, 100, 4):
        table = torch.randn(size)
        right(change)


@pytest.mark.wide
def test_types_and_strides_may_change():
    """Of a tensor whose products are exact in all of them."""
    base, slope = torch.tensor([1.0, -2.0, 0.5, 4.0]), SLOPES[0]

    def change(s, b, h, q, k):
        return s + slope[h] * (k - q) * 0.125

    others = (base.bfloat16(), base.half(), base.int(), base > 0, base.long(), base.flip(0), torch.randn(8)[::2])
    for other in (base, *others, torch.randn(1).expand(4)):
        slope = other
        right(change)


@pytest.mark.wide
def test_a_choice_of_pythons_follows():
    """By a number, by whether there is a tensor, and by a tensor's value, which may be refused."""
    config = types.SimpleNamespace(causal=False, slope=None)

    def change(s, b, h, q, k):
        if config.slope is not None:
            s = s + config.slope[h] * (k - q)
        return torch.where(q >= k, s, -float("inf")) if config.causal else s

    for config.causal in (False, True):
        for config.slope in (None, SLOPES[0]):
            right(change)
    flag = torch.tensor(False)

    def chosen(s, b, h, q, k):
        return s * 2 if flag else s

    for value in (False, True, False):
        flag.fill_(value)
        try:
            right(chosen)
        except NotImplementedError:
            continue


# ---- gradients, modes, threads ------------------------------------------------------------------


def test_gradients_may_be_wanted_later():
    slope = SLOPES[0].clone()
    change = changes(slope)
    case = Case(lambda z, of: (change, mask))
    qkv = [x.clone().requires_grad_() for x in (case.q, case.k, case.v)]
    for wanted in (False, True, False, True):
        slope.requires_grad_(wanted)
        out, _ = attend(*qkv, change, mask)
        found = torch.autograd.grad(out.square().sum(), [*qkv, slope][: 4 if wanted else 3])
        assert all(dx.abs().max() > 0.1 for dx in found)
        assert attend(case.q, case.k, case.v, change, mask)[0].requires_grad == wanted


def test_a_number_is_learned_in_a_loop():
    """An optimiser writes to what is captured."""
    case = Case(lambda z, of: (None, mask))
    with torch.no_grad():
        want, _ = attend(case.q, case.k, case.v, changes(SLOPES[0]), mask)
    slope, losses = nn.Parameter(torch.zeros(4)), []
    qkv = [x.clone().requires_grad_() for x in (case.q, case.k, case.v)]
    optimiser = torch.optim.Adam([slope], lr=0.1)
    for _ in range(8):
        optimiser.zero_grad()
        out, _ = attend(*qkv, changes(slope), mask)
        loss = (out - want).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(float(loss))
    assert losses[-1] < 0.9 * losses[0]


def test_tensors_of_inference_mode_are_followed():
    with torch.inference_mode():
        slope = SLOPES[0].clone()
        change = changes(slope)
        before = right(change)
        slope.mul_(2)
        assert not torch.allclose(right(change), before, atol=1e-3)
    right(change)  # outside of it, too


def test_modes_share_what_is_kept():
    slope = SLOPES[0].clone().requires_grad_()
    case, change = Case(lambda z, of: (change, mask)), changes(slope)
    with torch.inference_mode():
        one = attend(case.q, case.k, case.v, change, mask)[0]
    with torch.no_grad():
        two = attend(case.q, case.k, case.v, change, mask)[0]
    three = attend(case.q, case.k, case.v, change, mask)[0]
    assert torch.equal(one, two) and torch.equal(two, three)
    assert three.requires_grad and not two.requires_grad


def test_threads_have_their_own_functions():
    """They call at once, for the first time and later."""
    begin, faults, found = threading.Barrier(4), [], {}
    case = Case(lambda z, of: (None, mask))

    def work(i):
        try:
            begin.wait()
            for n in range(5):
                with torch.no_grad():
                    found[i, n] = attend(
                        case.q, case.k, case.v, changes(SLOPES[i % 2], 0.03 * (5 * i + n) + 0.01), mask
                    )[0]
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults
    for i, n in found:
        assert torch.equal(found[i, n], right(changes(SLOPES[i % 2], 0.03 * (5 * i + n) + 0.01)))


@pytest.mark.wide
@pytest.mark.gpu
@pytest.mark.xpu
def test_devices_may_change(xpu):
    slope, kept = SLOPES[0], KEPT
    case = Case(lambda z, of: (change, seen), dtype=torch.bfloat16)

    def change(s, b, h, q, k):
        return s + slope[h] * (k - q) * 0.1

    def seen(b, h, q, k):
        return kept[b, k] & (q + 20 >= k)

    found = []
    for device in ("cpu", "xpu", "cpu", "xpu:1"):
        slope, kept = SLOPES[0].to(device), KEPT.to(device)
        found.append(attend(*(x.to(device) for x in (case.q, case.k, case.v)), change, seen)[0].cpu())
    for out in found[1:]:
        torch.testing.assert_close(out, found[0], rtol=2e-2, atol=2e-2)


# ---- sizes --------------------------------------------------------------------------------------


@pytest.mark.wide
def test_sizes_may_change():
    """Of calls with the same functions."""
    slope = SLOPES[0]

    def mask(b, h, q, k):
        return (q + REACH >= k) & KEPT[b, k % 53]

    for z in (Sizes(), Sizes(rows=1), Sizes(rows=300, keys=400), Sizes(batch=1), Sizes()):
        case = Case(lambda z, of: (changes(slope), mask), z)
        check("sizes", case, case.by(attend, Captures()))
