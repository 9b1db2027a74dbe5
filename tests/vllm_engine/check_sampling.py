"""Tokens that vLLM draws by our sampler: their distribution, their seeds, extremes, and what is left to vLLM's own."""

import importlib
import logging

import engine as e
import numpy as np
import pytest
import torch
import xeflash
from products.limits import Case, kept
from vllm import SamplingParams
from vllm.platforms import current_platform
from vllm.v1.sample.ops import topk_topp_sampler as ops
from xeflash.integrations import vllm as plugin
from xeflash.integrations import vllm_sampler

PROMPT = e.prompts((20,))[0]
DRAWS = 4000


@pytest.fixture
def drawn(monkeypatch):
    """Samplers that a test makes draw by ours; these are the rows of each of their draws."""
    current_platform.import_kernels()
    monkeypatch.setattr(ops.TopKTopPSampler, "__init__", ops.TopKTopPSampler.__init__)
    monkeypatch.setenv("XEFLASH_VLLM_SAMPLER", "1")
    plugin.register()
    rows = []

    def noted(logits, **named):
        rows.append(len(logits))
        return xeflash.sample(logits, **named)

    monkeypatch.setattr(vllm_sampler, "sample", noted)
    return rows


def run(made, asked, said):
    """The tokens of prompts, each with its own parameters."""
    said = [SamplingParams(**{"max_tokens": e.NEW, "ignore_eos": True, "detokenize": False, **one}) for one in said]
    return e.tokens(made.generate([{"prompt_token_ids": ids} for ids in asked], said, use_tqdm=False))


def distance(found, logits, case):
    """Chi square of counted tokens in standard deviations above its mean, if what stays has these probabilities."""
    stays, weights = kept(logits, case)
    assert found[~stays].sum() == 0
    expected = found.sum() * weights[stays] / weights[stays].sum()
    order = np.argsort(expected)
    rare = np.cumsum(expected[order]) < 20  # of these one cell is made
    cells = [np.append(x[order][~rare], x[order][rare].sum()) for x in (found[stays], expected)]
    if not cells[1][-1]:
        cells = [x[:-1] for x in cells]
    freedom = len(cells[0]) - 1
    return (((cells[0] - cells[1]) ** 2 / cells[1]).sum() - freedom) / np.sqrt(2 * freedom)


@pytest.mark.parametrize(
    "said",
    [
        {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "seed": 1},
        {"temperature": 1.5, "top_p": 0.8},
        {"top_k": 12, "seed": 3},
        {"top_k": 60, "min_p": 0.03, "top_p": 0.99, "seed": 4},
        {"seed": 5},
    ],
    ids=str,
)
def test_tokens_of_the_engine_have_exact_probabilities(said, folder, drawn):
    """A request for many answers has a seed of its own for each of them."""
    with e.engine(e.saved("llama", folder), max_num_seqs=250) as (made, steps):
        many = SamplingParams(**{"temperature": 1.0, **said}, n=DRAWS, max_tokens=1, detokenize=False)
        (result,) = made.generate([{"prompt_token_ids": PROMPT}], many, use_tqdm=False)
    with torch.no_grad():
        logits = e.model("llama").double()(torch.tensor([PROMPT])).logits[0, -1].numpy()
    found = np.bincount([out.token_ids[0] for out in result.outputs], minlength=len(logits))
    case = Case(**{name: value for name, value in said.items() if name != "seed"})
    assert found.sum() == DRAWS == sum(drawn)
    away = distance(found, logits, case)
    other = distance(found, logits, case._replace(temperature=1.2 * case.temperature))
    print(f"vLLM {said}: chi square {away:.1f} deviations from its mean, {other:.0f} with another temperature")
    assert away < 4 < other


SEEDED = [
    {"temperature": 0.9, "top_k": 30, "top_p": 0.9, "seed": 11},
    {"temperature": 1.3, "top_k": 40, "seed": 12},
    {"seed": 13, "presence_penalty": 0.5},
    {"top_p": 0.7, "seed": 11, "allowed_token_ids": list(range(3, 50))},
    {"min_p": 0.02, "seed": -5},
]
OTHERS = [{"temperature": 0}, {"top_p": 0.5}, {"top_k": 3}, {}]


@pytest.mark.parametrize("seats", [3, 8])
def test_a_seed_gives_the_same_tokens_in_every_batch(seats, folder, drawn):
    asked = e.prompts((5, 17, 1, 30, 20))
    with e.engine(e.saved("llama", folder), max_num_seqs=seats) as (made, steps):
        alone = [run(made, [ids], [said])[0] for ids, said in zip(asked, SEEDED, strict=True)]
        assert drawn == [1] * e.NEW * len(asked)
        first = run(made, asked + e.prompts((9, 8, 7, 6)), SEEDED + OTHERS)
        second = run(made, e.prompts((9, 8, 7, 6), seed=2) + asked[::-1], OTHERS + SEEDED[::-1])
    assert first[:5] == alone == second[:3:-1]
    assert len({tuple(row) for row in alone}) == 5 and max(drawn) == seats
    with e.engine(e.saved("llama", folder), max_num_seqs=seats) as (made, steps):
        greedy = run(made, e.prompts((9,)), [{"temperature": 0}])
    assert first[5] == greedy[0]
    assert set(alone[3]) <= set(range(3, 50))


def test_batches_that_are_faster_in_vllms_own_way_are_left_to_it(folder, drawn):
    with e.engine(e.saved("llama", folder)) as (made, steps):
        run(made, e.prompts((5, 17)), [{"top_k": 5}] * 2)
        assert drawn == []
        run(made, e.prompts((5, 17)), [{"top_k": 5}, {"top_k": 5, "seed": 0}])
        assert drawn == [2] * e.NEW


def test_log_probabilities_are_those_of_the_tokens_that_were_drawn(folder, drawn):
    with e.engine(e.saved("llama", folder), max_logprobs=e.FULL) as (made, steps):
        got = e.generate(made, e.prompts((5, 17)), temperature=1.0, top_p=0.8, logprobs=e.FULL, seed=1)
    assert drawn and e.largest(e.logits(got), e.eager("llama", got)) < e.EXACT


@pytest.mark.parametrize("asked", [{"logprobs_mode": "processed_logprobs"}, {"use_fp64_gumbel": True}], ids=str)
def test_what_is_asked_for_besides_tokens_is_left_to_vllm(asked, folder, drawn, caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    with e.engine(e.saved("llama", folder), max_logprobs=e.FULL, **asked) as (made, steps):
        got = e.generate(made, [PROMPT], temperature=1.0, top_k=5, top_p=0.9, logprobs=e.FULL, seed=1)
    assert drawn == [] and "xeflash leaves draws to vLLM's own sampler: " + "".join(asked) in caplog.text
    left = (e.logits(got)[0] > -np.inf).sum(-1)
    assert (left <= 5).all() == ("logprobs_mode" in asked)


def test_without_the_variable_vllm_draws(monkeypatch):
    monkeypatch.setenv("XEFLASH_VLLM_SAMPLER", "0")
    plugin.register()
    sampler = ops.TopKTopPSampler()
    assert sampler.forward.__self__ is sampler
    monkeypatch.setenv("XEFLASH_VLLM_SAMPLER", "on")
    with pytest.raises(ValueError, match="XEFLASH_VLLM_SAMPLER must be 0 or 1, got 'on'"):
        plugin.register()


def tensors(rows, k, p):
    """What the runner gives of top_k and top_p; None: no request has one."""
    return None if k is None else torch.full((rows,), k), None if p is None else torch.full((rows,), p)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("k", "p"), [(None, None), (9, 0.8), (None, 0.4), (200, 1.0), (1, 1.0)])
def test_what_is_drawn_is_what_vllm_keeps(k, p, dtype, drawn):
    rows, vocabulary = 300, 200
    logits = torch.randn(1, vocabulary, generator=torch.Generator().manual_seed(0)).to(dtype)
    logits[0, ::3] = -torch.inf  # as masks of grammars
    logits = logits.expand(rows, -1).clone()
    sampler = ops.TopKTopPSampler()
    tokens, none = sampler(logits, {4: torch.Generator()}, *tensors(rows, k, p))
    stays = ops.apply_top_k_top_p(logits[:1].float(), *tensors(1, k, p))[0] > -torch.inf
    assert none is None and drawn == [rows] and tokens.dtype == torch.int64
    assert stays[tokens].all() and len(set(tokens.tolist())) > min(stays.sum(), 30) / 2


@pytest.mark.parametrize(
    ("row", "tokens"),
    [
        ([1.0], {0}),
        ([-np.inf] * 3, {0}),
        ([np.nan] * 3, {0}),
        ([-np.inf, 2.0, np.nan], {1}),
        ([np.nan, 1.0, 1.0], {1, 2}),
    ],
)
@pytest.mark.parametrize(("k", "p"), [(None, None), (1, 0.5), (2, 0.9)])
def test_rows_of_few_numbers(row, tokens, k, p, drawn):
    sampler = ops.TopKTopPSampler()
    found, _ = sampler(torch.tensor([row] * 100), {0: torch.Generator()}, *tensors(100, k, p))
    assert set(found.tolist()) == tokens
    empty, _ = sampler(torch.zeros(0, 5), {}, *tensors(0, k, p))
    assert empty.shape == (0,)


@pytest.mark.gpu
@pytest.mark.xpu
def test_on_xpu_a_generator_is_set_back_by_one_draw(xpu, drawn):
    """As vLLM's runner sets it back by 4 where a prompt goes on, and no token was wanted."""
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(0)).to("xpu", torch.bfloat16)
    sampler, generator = ops.TopKTopPSampler(), torch.Generator("xpu").manual_seed(3)
    numbers = [x.to("xpu") for x in tensors(3, 40, 0.9)]
    draws = []
    for back in (0, 4, 0):
        generator.set_offset(generator.get_offset() - back)
        draws.append(sampler(logits, {1: generator}, *numbers)[0].tolist())
    again = sampler(logits[1:2], {0: torch.Generator("xpu").manual_seed(3)}, *(x[:1] for x in numbers))[0].tolist()
    assert drawn == [3, 3, 3, 1]
    assert draws[0][1] == draws[1][1] == again[0] != draws[2][1]


@pytest.fixture
def second(monkeypatch, drawn):
    """Makes samplers of vLLM's second model runner, with the parameters of requests."""
    module = importlib.import_module("vllm.v1.worker.gpu.sample.sampler")
    if not hasattr(module.Sampler, "_sample_random"):
        pytest.skip("vLLM before 0.30 has no method to draw by")

    def init(self, said, vocabulary, **named):
        vars(self).update({"logprobs_mode": "raw_logprobs", "use_fp64_gumbel": False, **named})
        self.use_flashinfer = self.use_xpu_sampler = False
        self.needs_logits_processing = np.zeros(len(said), dtype=bool)
        self.sampling_states = module.SamplingStates(len(said), vocabulary)
        for i, one in enumerate(said):
            self.sampling_states.add_request(i, SamplingParams(**one))
        self.sampling_states.apply_staged_writes()

    monkeypatch.setattr("vllm.triton_utils.HAS_TRITON", True)
    monkeypatch.setattr(module.Sampler, "__init__", init)
    vllm_sampler.install()
    return module.Sampler


def test_second_runner_draws_by_its_seeds_and_positions(second, drawn):
    said = [{"top_k": 20, "top_p": 0.9, "seed": 7}, {"temperature": 0}, {"top_k": 9, "seed": 7}, {"seed": 2}]
    sampler, logits = second(said, 500), torch.randn(5, 500, generator=torch.Generator().manual_seed(0)).bfloat16()
    request, at = torch.tensor([2, 1, 0, 3, 0]), torch.tensor([4, 4, 5, 6, 9], dtype=torch.int32)

    def draw(rows):
        mapping = request[rows]
        return sampler.sample(logits[rows], mapping, mapping, mapping.numpy(), at[rows], None, None, None)

    tokens, processed = draw(torch.arange(5))
    limits = {"top_k": torch.tensor([9, 500, 20, 500, 20], dtype=torch.int32), "top_p": torch.ones(5)}
    limits["top_p"][[2, 4]] = 0.9
    seeds = torch.tensor([7, 0, 7, 2, 7])
    want = xeflash.sample(logits, seed=seeds, position=at.long(), **limits)
    want[1] = logits[1].argmax()
    assert torch.equal(tokens, want) and drawn == [5] and torch.equal(processed, logits)
    assert [int(draw(torch.tensor([i]))[0]) for i in range(5)] == tokens.tolist()


def test_second_runner_keeps_its_own_draws_where_they_give_more(second, drawn):
    for more in ({"logprobs_mode": "processed_logits"}, {"use_fp64_gumbel": True}, {"return_sampling_mask": True}):
        sampler = second([{}], 50, **more)
        assert sampler._sample_random.__self__ is sampler
    watermark = type("Watermark", (second,), {"_sample_random": lambda self: "watermark"})
    assert watermark([{}], 50)._sample_random() == "watermark"
