"""Tokens that are drawn: against the same race in float64, the limits of vLLM and Transformers, distributions, refusals."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import xeflash
from arrays import DTYPES, from_array, to_array
from fuzz.case import passing_mode
from limits import Case, kept
from xeflash.selftest.products.heads import exponentials

GPU_TESTS = ("test_gpu",)


def name_of(case):
    return "-".join(str(x) for x, default in zip(case, Case(), strict=True) if x != default) or "default"


def new_logits(case):
    generator = torch.Generator().manual_seed(case.rows + case.vocabulary)
    z = 3 * torch.randn(case.rows, case.vocabulary, generator=generator)
    z = z.to(DTYPES[case.dtype])
    if case.strided:
        around = torch.full((2 * case.rows, case.vocabulary + 7), float("nan"), dtype=z.dtype)
        z = around[::2, 3 : 3 + case.vocabulary].copy_(z)
    return z


def run(case):
    """Each token wins the race, up to fp32, and is one of those that stay."""
    z = new_logits(case)
    seeds = torch.arange(case.rows) * 2**40 + 11
    positions = torch.arange(case.rows) + 2**33
    given = [to_array(x, case.kind) for x in (z, seeds, positions)]
    tokens = from_array(xeflash.sample(given[0], seed=given[1], position=given[2], **case.options), case.kind)
    assert tokens.dtype == torch.int64 and tokens.shape == (case.rows,)
    for i, token in enumerate(tokens.tolist()):
        stays, p = kept(z[i].float().numpy(), case)
        nearly, _ = kept(z[i].float().numpy(), case.wider(1e-4))
        assert nearly[token], f"row {i}: token {token} was to be left out"
        race = p / exponentials(case.vocabulary, int(seeds[i]), int(positions[i]))
        assert race[token] >= race[stays].max() * (1 - 1e-4), f"row {i}: {token} is not {np.argmax(race * stays)}"


CASES = [Case(dtype, rows, vocabulary) for dtype, rows, vocabulary in
         (("fp32", 1, 1), ("bf16", 1, 17), ("fp16", 23, 64), ("fp32", 7, 65), ("bf16", 127, 1000), ("fp32", 2, 32003))]  # fmt: skip
CASES += [
    Case(top_k=1), Case(top_k=50), Case("bf16", top_k=7), Case(top_k=1000), Case(top_k=-1),
    Case(top_p=0.9), Case("bf16", top_p=0.5), Case(top_p=0.0), Case(top_p=1e-6),
    Case(min_p=0.1), Case(min_p=1.0), Case(temperature=0.3), Case(temperature=5.0),
    Case("fp16", 5, 5000, 0.7, 40, 0.9, 0.05), Case("fp32", 5, 5000, 1.3, 40, 0.9, 0.05, min_p_last=True),
    Case("fp32", 5, 3001, 0.8, 20, 0.95, softcap=4.0, logit_scale=0.5, kind="numpy"),
    Case("bf16", 5, 3001, softcap=2.0, min_p=0.3, top_p=0.6), Case("fp16", 4, 999, top_p=0.8, strided=True),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_matches_reference(case):
    run(case)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case",
    [
        Case("bf16", 5, 3001, 0.8, 40, 0.9, 0.02, kind="usm"),
        Case("fp32", 2, 1000, 1.0, 0, 0.7, 0.1, 5.0, 0.7, True, "usm"),
        Case("fp16", 3, 77, kind="usm", strided=True),
    ],
    ids=name_of,
)
def test_gpu(case, gpu):
    run(case)


def test_many_draws_have_the_probabilities_of_what_stays():
    case = Case(vocabulary=40, temperature=0.8, top_k=12, top_p=0.9)
    z, count = new_logits(case)[:1], 100_000
    tokens = xeflash.sample(z.expand(count, -1), seed=5, **case.options)
    found = np.bincount(tokens.numpy(), minlength=40)

    def chi_square(case):
        """In standard deviations above its mean."""
        stays, weights = kept(z[0].numpy(), case)
        expected = count * weights[stays] / weights[stays].sum()
        freedom = stays.sum() - 1
        return (((found[stays] - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom)

    assert found[~kept(z[0].numpy(), case)[0]].sum() == 0
    assert chi_square(case) < 5
    assert chi_square(case._replace(temperature=0.82)) > 5  # and it knows other ones from these


def test_rare_tokens_are_drawn_as_often_as_they_should_be():
    """Uniform numbers of 24 bits would draw the last ones too often, or never."""
    z = torch.full((1, 1 << 16), -13.0)
    z[0, 0] = 0.0
    tokens = xeflash.sample(z.expand(2000, -1), seed=9)
    share = (1 << 16) * np.exp(-13.0) / (1 + (1 << 16) * np.exp(-13.0))
    assert abs((tokens > 0).double().mean() - share) < 4.5 * np.sqrt(share * (1 - share) / 2000)


def test_a_token_is_the_same_in_every_batch():
    case = Case("bf16", 9, 5000, 0.9, 50, 0.95)
    z, seeds, positions = new_logits(case), torch.arange(9) + 3, torch.arange(9) * 5
    options = {"seed": seeds, "position": positions, "temperature": torch.linspace(0.2, 1.5, 9), "top_k": case.top_k}
    options |= {"top_p": torch.linspace(0.5, 1, 9), "min_p": torch.linspace(0, 0.2, 9)}
    together = xeflash.sample(z, **options)
    for i in (0, 4, 8):
        alone = {name: x[i : i + 1] if isinstance(x, torch.Tensor) else x for name, x in options.items()}
        assert xeflash.sample(z[i : i + 1], **alone) == together[i]
    order = torch.randperm(9)
    shuffled = {name: x[order] if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    assert torch.equal(xeflash.sample(z[order], **shuffled), together[order])


def test_rows_with_one_seed_differ_and_other_positions_draw_anew():
    z = torch.zeros(1, 4000).expand(8, -1)
    tokens = xeflash.sample(z, seed=1)
    assert len(set(tokens.tolist())) == 8
    assert torch.equal(tokens, xeflash.sample(z, seed=1))
    assert not torch.equal(tokens, xeflash.sample(z, seed=1, position=1))
    assert not torch.equal(tokens, xeflash.sample(z, seed=1 + 2**32))


def test_ties_stay_together():
    z = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]]).expand(500, -1)
    assert set(xeflash.sample(z, seed=0, top_k=2, temperature=50.0).tolist()) == {0, 1, 2, 3}
    assert set(xeflash.sample(z, seed=0, top_p=0.25, temperature=50.0).tolist()) == {0, 1, 2, 3}
    assert set(xeflash.sample(z, seed=0, top_p=0.15, temperature=50.0).tolist()) == {0}


@pytest.mark.parametrize(
    ("row", "tokens"),
    [
        ([-np.inf, 1.0, -np.inf], {1}),
        ([np.nan, 1.0, np.nan], {1}),
        ([np.inf, 1.0, np.inf], {0, 2}),
        ([-np.inf, -np.inf], {-1}),
        ([np.nan, np.nan], {-1}),
        ([3e38, -3e38], {0}),
        ([-3e38, -3e38], {0, 1}),
        ([-0.0, 0.0], {0, 1}),
    ],
)
@pytest.mark.parametrize("options", [{}, {"top_k": 1}, {"top_p": 0.4}, {"min_p": 0.5}, {"temperature": 0}], ids=str)
def test_extremes(row, tokens, options):
    z = torch.tensor([row]).expand(200, -1)
    found = set(xeflash.sample(z, seed=4, **options).tolist())
    assert found == ({min(tokens)} if "temperature" in options else tokens)


def test_greedy_takes_the_first_of_equal_ones():
    z = torch.tensor([[1.0, 3.0, 3.0, 2.0]] * 3).bfloat16()
    assert xeflash.sample(z, seed=0, temperature=0).tolist() == [1, 1, 1]
    assert xeflash.sample(z, seed=0, temperature=torch.tensor([0.0, 1e-6, 0.0]), top_k=1).tolist() == [1, 1, 1]


@pytest.mark.parametrize("shape", [(0, 5), (2, 0, 5), (5,), (2, 3, 5)])
def test_shapes(shape):
    assert xeflash.sample(torch.zeros(shape), seed=0).shape == shape[:-1]


@pytest.mark.parametrize("quantised", [False, True])
def test_a_head_draws_what_its_logits_draw(quantised):
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(70, 128, generator=generator), torch.randn(3001, 128, generator=generator)
    scales, weight = None, w
    if quantised:
        weight, scales = w.mul(30).round().clamp(-127, 127).to(torch.int8), torch.full((3001,), 1 / 30)
    logits = torch.cat([xeflash.linear(x[i : i + 64], weight, scales=scales) for i in (0, 64)])
    options = {"temperature": 0.7, "top_p": 0.9, "softcap": 20.0}
    for seed in (3, torch.arange(70)):
        assert torch.equal(
            xeflash.linear_sample(x, weight, scales=scales, seed=seed, **options),
            xeflash.sample(logits, seed=seed, **options),
        )
    assert torch.equal(xeflash.linear_sample(x, weight, scales=scales, seed=0, temperature=0), logits.argmax(-1))
    assert xeflash.linear_sample(x.reshape(7, 10, 128), weight, scales=scales, seed=0).shape == (7, 10)


def test_a_head_takes_tensors_and_numpy_arrays():
    x, w = np.ones((1, 70, 32), np.float32), np.eye(40, 32, dtype=np.float32)
    assert xeflash.linear_sample(x, w, seed=0, temperature=0).tolist() == [[0] * 70]
    with pytest.raises(
        NotImplementedError, match="^linear_sample: x must be a torch tensor or a numpy array, got Simple"
    ):
        xeflash.linear_sample(SimpleNamespace(shape=(3, 32)), w, seed=0)


def test_compiles_into_one_graph():
    x, w, seeds = torch.randn(3, 64), torch.randn(500, 64), torch.arange(3)

    def step(x, w, seeds):
        return xeflash.linear_sample(x, w, seed=seeds, top_p=0.9), xeflash.sample(x @ w.T, seed=1, top_k=5)

    compiled = torch.compile(step, backend="aot_eager", fullgraph=True)
    for ours, theirs in zip(compiled(x, w, seeds), step(x, w, seeds), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"temperature": -1.0}, ValueError, "sample: temperature must be 0 or positive, and finite, got -1.0"),
        ({"temperature": float("nan")}, ValueError, "temperature must be 0 or positive"),
        ({"top_p": 1.5}, ValueError, "sample: top_p must be 0 to 1, got 1.5"),
        ({"min_p": -0.1}, ValueError, "sample: min_p must be 0 to 1, got -0.1"),
        ({"logit_scale": 0.0}, ValueError, "sample: logit_scale must be positive and finite, got 0.0"),
        ({"softcap": -2.0}, ValueError, "sample: softcap must be 0 or positive, and finite, got -2.0"),
        ({"top_k": 1.5}, TypeError, "sample: top_k must be an integer, got 1.5"),
        ({"seed": "a"}, TypeError, "sample: seed must be an integer"),
        ({"seed": torch.zeros(2, dtype=torch.int64)}, ValueError, "seed must have a number for each of the 3 rows"),
        ({"seed": torch.zeros(3)}, TypeError, "sample: seed must be int64, got float32"),
        ({"top_k": torch.zeros(3, dtype=torch.int64)}, TypeError, "sample: top_k must be int32, got int64"),
        ({"temperature": torch.zeros(3, dtype=torch.float64)}, TypeError, "temperature must be float32"),
        ({"logits": torch.zeros(3, 5, dtype=torch.int32)}, TypeError, "logits must be float32, float16 or bfloat16"),
        ({"logits": torch.zeros(3, 0)}, ValueError, "logits must have 1 to 2^30 tokens in its last dimension, got 0"),
        ({"logits": torch.zeros(())}, ValueError, "logits must have at least 1 dimension"),
        ({"logits": torch.zeros(3, 5, requires_grad=True)}, NotImplementedError, "logits must not require grad"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(changes, error, says):
    with pytest.raises(error) as raised:
        xeflash.sample(**{"logits": torch.zeros(3, 5), "seed": 0, **changes})
    assert says in str(raised.value)


@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "seed", "position", "top_k"])
def test_numbers_of_rows_are_refused_by_their_own_name(name):
    given = {"logits": torch.zeros(3, 5), "seed": 0}
    nested = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)])
    with pytest.raises(TypeError, match=f"^sample: {name} must be a torch tensor, a numpy array"):
        xeflash.sample(**given | {name: nested})
    if name in ("temperature", "top_p", "min_p"):
        with pytest.raises(NotImplementedError, match=f"^sample: {name} must not require grad"):
            xeflash.sample(**given | {name: torch.ones(3, requires_grad=True)})


@pytest.mark.parametrize("mode", [contextlib.nullcontext, passing_mode], ids=["direct", "mode"])
def test_numbers_may_be_tensors_without_dimensions(mode):
    logits = torch.randn(3, 50)
    numbers = {"seed": 7, "position": 5, "temperature": 0.5, "top_k": 20, "top_p": 0.9, "min_p": 0.01}
    want = xeflash.sample(logits, **numbers)
    with mode():
        assert torch.equal(xeflash.sample(logits, **{name: torch.tensor(x) for name, x in numbers.items()}), want)


def test_numbers_vary_in_one_graph():
    logits = torch.randn(3, 50)
    compiled = torch.compile(
        lambda s, t: xeflash.sample(logits, seed=s, temperature=t), backend="aot_eager", fullgraph=True
    )
    for seed, temperature in ((3, 0.5), (4, 0.7), (5, 0.9)):
        want = xeflash.sample(logits, seed=seed, temperature=temperature)
        assert torch.equal(compiled(seed, temperature), want)


def test_numbers_of_another_library_are_refused_by_their_name():
    with passing_mode(), pytest.raises(TypeError, match="^sample: top_p must be a dense torch tensor as logits is one"):
        xeflash.sample(torch.zeros(3, 5), seed=0, top_p=np.ones(3, np.float32))


def test_a_head_without_tokens_is_refused():
    with pytest.raises(ValueError, match="^linear_sample: weight must have rows, one of which is drawn, got 0"):
        xeflash.linear_sample(torch.ones(2, 8), torch.ones(0, 8), seed=1)


def test_inputs_of_a_head_are_dense():
    with pytest.raises(TypeError, match="^linear_sample: x must be a dense tensor"):
        xeflash.linear_sample(torch.zeros(2, 2, 8).to_sparse(), torch.zeros(5, 8), seed=0)
    for shape in ((0,), (2, 0), (2, 3, 0)):
        assert xeflash.linear_sample(torch.zeros(shape), torch.zeros(5, 0), seed=0).shape == shape[:-1]


def test_a_softcap_below_all_normal_numbers_leaves_no_logit():
    logits = torch.tensor([[0.0, 1e4, -1e4]]).expand(2000, 3)
    for softcap in (1e-60, 1e-45, 1e-30):
        found = xeflash.sample(logits, seed=3, softcap=softcap)
        assert found.bincount(minlength=3).min() > 500  # each is as probable as the others
