"""flex_attention by xeflash: results and gradients of functions that people write, and what is refused.

Functions of the default set share three kernels, or none is compiled: then the texts that a kernel would have are looked at.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
import xeflash
from flex_examples import EXAMPLES, Captures, Example, Mods, Sizes, within
from flex_reference import Case, check, floats_are, reference
from torch.nn.attention import flex_attention as torchs
from torch.nn.attention.flex_attention import BlockMask, create_block_mask
from xeflash.integrations.flex import Refused, flex_attention

RUN = "score-and-mask"
ON_GPUS = ("score-and-mask", "buckets", "jagged-causal", "neighbourhood", "waves", "quotients")
BOOK = 128

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, score_mod: Any, mask_mod: Any, block: Any = BOOK, **more: Any
) -> Any:
    """flex_attention of both functions, as a caller of torch's writes it."""
    blocks = blocks_of(q, k, mask_mod, block)
    more = {"return_lse": True, "enable_gqa": q.shape[1] != k.shape[1]} | more
    return flex_attention(q, k, v, score_mod, blocks, **more)


def blocks_of(q: torch.Tensor, k: torch.Tensor, mask_mod: Any, block: Any = BOOK) -> BlockMask | None:
    if mask_mod is None:
        return None
    sizes = (*q.shape[:3], k.shape[2])
    with torch.device(q.device):
        return create_block_mask(mask_mod, *sizes, device=str(q.device), BLOCK_SIZE=block)


class Seen(Exception):
    """A call has come as far as the extension."""


@pytest.fixture
def said(monkeypatch):
    """What the extension is told by a call of an example, which does not run."""

    def forward(**given):
        raise Seen({name: given.get(name) for name in ("score_mod", "mask_mod", "blocks")})

    def ask(example: Example, z: Sizes = Sizes(), of: Captures | None = None, **more: Any) -> dict[str, Any]:
        with monkeypatch.context() as patch, pytest.raises(Seen) as seen:
            patch.setattr(xeflash._core, "forward", forward)
            Case(example, z).by(functools.partial(attend, **more), of or Captures())
        return seen.value.args[0]

    return ask


def texts(said: dict[str, Any]) -> list[str]:
    return [said[name][0] for name in ("score_mod", "mask_mod") if said[name] is not None]


def captured(said: dict[str, Any]) -> dict[str, Any]:
    return {name: x for snippet in ("score_mod", "mask_mod") for name, x in (said[snippet] or ("", {}))[1].items()}


# ---- the reference ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_reference_says_what_torch_says(name):
    """In float64, which torch computes in without kernels."""

    def by_torch(q, k, v, score_mod, mask_mod, scale):
        blocks = blocks_of(q, k, mask_mod)
        with floats_are(torch.float64):
            return torchs.flex_attention(q, k, v, score_mod, blocks, scale, enable_gqa=True, return_lse=True)

    case = Case(EXAMPLES[name], dtype=torch.float64, scale=0.15)
    want, got = (case.by(by, Captures(torch.float64)) for by in (by_torch, reference))
    for what in want:
        torch.testing.assert_close(got[what], want[what], rtol=1e-12, atol=1e-12)


# ---- results ------------------------------------------------------------------------------------


def run(name: str, z: Sizes = Sizes(), device: str = "cpu", grad: bool = True, **more: Any) -> None:
    """Fails where out, LSE or a gradient is beyond its limit."""
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    case = Case(EXAMPLES[name], z, dtype, more.pop("scale", None))
    got = case.by(functools.partial(attend, **more), Captures(device=device, grad=grad), grad)
    ratios = check(name, case, got, on_gpu=device != "cpu")
    print(name, ", ".join(f"{what} {ratio:.2f}" for what, ratio in ratios.items()), "of PyTorch's error")


def test_an_example_matches_reference():
    run(RUN)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != RUN])
@pytest.mark.wide
def test_examples_match_reference(name):
    run(name)


@pytest.mark.wide
@pytest.mark.gpu
@pytest.mark.xpu
@pytest.mark.parametrize("name", ON_GPUS)
def test_examples_match_reference_on_gpus(xpu, name):
    run(name, device="xpu")


OTHER_SIZES = {
    "no-gqa": Sizes(heads_k=4),
    "mqa": Sizes(heads_k=1),
    "one-of-each": Sizes(1, 1, 1, 2, 1),
    "one-row": Sizes(rows=1),
    "many-blocks": Sizes(rows=300, keys=400),
    "more-rows": Sizes(rows=300, keys=53),
}
HAVE_OTHER_KERNELS = ("one-of-each", "one-row", "many-blocks", "more-rows")


@pytest.mark.parametrize("sizes", OTHER_SIZES)
def test_other_sizes_match_reference(sizes):
    run(RUN, OTHER_SIZES[sizes], grad=sizes not in HAVE_OTHER_KERNELS, scale=0.2)


@pytest.mark.parametrize("sizes", HAVE_OTHER_KERNELS)
@pytest.mark.wide
def test_gradients_of_other_sizes_match_reference(sizes):
    run(RUN, OTHER_SIZES[sizes])


@pytest.mark.parametrize("sizes", ["many-blocks", "one-row"])
@pytest.mark.parametrize("name", ["documents", "sliding-window", "neighbourhood", "window-of-each-head", "lengths"])
@pytest.mark.parametrize("block", [16, 64, (128, 64), (32, 128), 256], ids=str)
@pytest.mark.wide
def test_blocks_match_reference(name, block, sizes):
    run(name, OTHER_SIZES[sizes], block=block, grad=sizes != "one-row")


@pytest.mark.parametrize("name", EXAMPLES)
def test_other_numbers_have_the_same_text(name, said):
    """So windows and lengths of any size share a kernel."""
    small, large = said(EXAMPLES[name]), said(EXAMPLES[name], Sizes(rows=130, keys=170))
    assert texts(small) == texts(large)
    arrays = [x for x in captured(large).values() if isinstance(x, torch.Tensor) and x.dim()]
    assert len(arrays) <= 8


@pytest.mark.parametrize(
    "name, other",
    [("sliding-window", dict(width=5)), ("streaming", dict(first=9, width=77)), ("softcap", dict(cap=30.0))],
)
def test_numbers_of_closures_are_captured(name, other, said):
    def example(z: Sizes, of: Captures) -> Mods:
        return EXAMPLES[name](z, of, **other)

    one, two = said(EXAMPLES[name]), said(example)
    assert texts(one) == texts(two) and captured(one) != captured(two)


# ---- arguments ----------------------------------------------------------------------------------


def inputs(grad: bool = False, **sizes: int) -> tuple[Any, ...]:
    """q, k, v and the functions of RUN."""
    case, of = Case(EXAMPLES[RUN], Sizes(**sizes)), Captures(grad=grad)
    mods = case.example(case.z, of)
    return case.q, case.k, case.v, *mods


def test_results_are_those_that_are_asked_for():
    q, k, v, score_mod, mask_mod = inputs()
    out, lse = attend(q, k, v, score_mod, mask_mod)
    assert out.shape == q.shape and lse.shape == q.shape[:-1] and lse.dtype == torch.float32
    assert torch.equal(attend(q, k, v, score_mod, mask_mod, return_lse=False), out)
    for wants in (True, False):
        aux = torchs.AuxRequest(lse=wants)
        same, more = attend(q, k, v, score_mod, mask_mod, return_lse=False, return_aux=aux)
        assert torch.equal(same, out) and more.max_scores is None
        assert more.lse is None if not wants else torch.equal(more.lse, lse)


def test_options_of_kernels_change_nothing():
    q, k, v, score_mod, mask_mod = inputs()
    out, lse = attend(q, k, v, score_mod, mask_mod)
    others = attend(q, k, v, score_mod, mask_mod, kernel_options={"BLOCK_M": 64, "PRESCALE_QK": False})
    assert torch.equal(others[0], out) and torch.equal(others[1], lse)


def test_without_functions_it_is_attention():
    q, k, v = inputs()[:3]
    out, lse = flex_attention(q, k, v, enable_gqa=True, return_lse=True)
    want = xeflash.attention(q, k, v, enable_gqa=True, return_lse=True)
    assert torch.equal(out, want[0]) and torch.equal(lse, want[1])


def test_strides_are_read_as_they_are():
    q, k, v, score_mod, mask_mod = inputs()
    want = attend(q, k, v, score_mod, mask_mod)
    swapped = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    got = attend(*swapped, score_mod, mask_mod)
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


def test_a_cut_block_mask_is_taken():
    """As torch wants it: one that is not told its lengths is refused."""
    q, k, v, score_mod, mask_mod = inputs(rows=300, keys=400)
    blocks = blocks_of(q, k, mask_mod)
    want, rows = attend(q, k, v, score_mod, mask_mod, return_lse=False)[:, :, :128], q[:, :, :128]
    first = blocks[:, :, :1]
    first.mask_mod = blocks.mask_mod
    with pytest.raises(ValueError, match="block_mask"):
        flex_attention(rows, k, v, score_mod, first, enable_gqa=True)
    first.seq_lengths = (128, 400)
    for cut in (first, blocks._adjust(128, 400)):
        torch.testing.assert_close(flex_attention(rows, k, v, score_mod, cut, enable_gqa=True), want)


@pytest.mark.wide
def test_integers_beyond_32_bits_are_what_they_are_or_refused():
    """A hash that names a document is no limit."""
    documents = 2**40 + torch.arange(53) // 9
    case = Case(lambda z, of: (None, lambda b, h, i, j: documents[i] == documents[j]))
    try:
        check("hashes", case, case.by(attend, Captures()))
    except NotImplementedError:
        return


REFUSED = {
    "float64-queries": (
        TypeError,
        NotImplementedError,
        lambda q, k, v: flex_attention(q.double(), k.double(), v.double(), enable_gqa=True),
    ),
    "max-scores": (
        NotImplementedError,
        lambda q, k, v: flex_attention(q, k, v, enable_gqa=True, return_aux=torchs.AuxRequest(max_scores=True)),
    ),
    "heads": (ValueError, lambda q, k, v: flex_attention(q, k, v)),
    "an-if": (
        NotImplementedError,
        lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: s if i > j else -s, enable_gqa=True),
    ),
    "float64-captures": (
        NotImplementedError,
        lambda q, k, v: flex_attention(q, k, v, functools.partial(_plus, torch.randn(53).double()), enable_gqa=True),
    ),
    "nine-arrays": (
        NotImplementedError,
        lambda q, k, v: flex_attention(
            q, k, v, functools.partial(_all_of, [torch.randn(37, 53) for _ in range(9)]), enable_gqa=True
        ),
    ),
    "another-mask": (
        ValueError,
        lambda q, k, v: flex_attention(
            q, k, v, None, create_block_mask(within(3), 2, 4, 300, 53, "cpu"), enable_gqa=True
        ),
    ),
    "numbers-at-random": (
        NotImplementedError,
        lambda q, k, v: flex_attention(q, k, v, lambda s, b, h, i, j: s + torch.rand_like(s), enable_gqa=True),
    ),
}


def _plus(bias, s, b, h, q, k):
    return s + bias[k]


def _all_of(biases, s, b, h, q, k):
    for bias in biases:
        s = s + bias[q, k] * s
    return s


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_said_is_refused(case):
    *errors, call = REFUSED[case]
    q, k, v = inputs()[:3]
    with pytest.raises(tuple(errors), match="attention: "):
        call(q, k, v)


def test_refused_is_an_error_of_pythons():
    assert issubclass(Refused, NotImplementedError)
