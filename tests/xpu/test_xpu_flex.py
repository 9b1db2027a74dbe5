"""torch's flex_attention on xpu tensors, eager and compiled, is xeflash's, with gradients."""

import pytest
import torch
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
from xeflash.integrations import flex

pytestmark = [pytest.mark.gpu, pytest.mark.xpu, pytest.mark.wide, pytest.mark.filterwarnings("ignore::UserWarning")]
ROWS, HEADS, DIM = 150, 4, 64


def inputs(device, dtype):
    """Query, key, value, slopes of the heads, and the documents of two sequences."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, heads, ROWS, DIM, generator=generator) for heads in (HEADS, 2, 2))
    slopes = torch.randn(HEADS, generator=generator)
    numbers = torch.stack([torch.arange(ROWS) // 40, torch.arange(ROWS) // 70])
    learned = [x.to(torch.bfloat16).to(device, dtype).requires_grad_() for x in (q, k, v, slopes)]
    return [*learned, numbers.to(device)]


def changes(slopes, numbers):
    """A bias by distance that the heads learn, and documents."""

    def bias(score, b, h, q_idx, kv_idx):
        return score + slopes[h] * (kv_idx - q_idx) * 0.1

    def document(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (numbers[b, q_idx] == numbers[b, kv_idx])

    return bias, document


def by_formula():
    q, k, v, slopes, numbers = inputs("cpu", torch.float64)
    rows = torch.arange(ROWS)
    hidden = (rows[:, None] < rows) | (numbers[:, None, :, None] != numbers[:, None, None, :])
    bias = slopes[:, None, None] * (rows - rows[:, None]) * 0.1
    scores = q @ k.repeat_interleave(2, 1).mT / DIM**0.5 + bias
    scores = scores.masked_fill(hidden, -torch.inf)
    out, lse = scores.softmax(-1) @ v.repeat_interleave(2, 1), scores.logsumexp(-1)
    (out.square().sum() + lse.sum()).backward()
    return [out, lse, *(x.grad for x in (q, k, v, slopes))]


WAYS = {
    "own": lambda: flex.flex_attention,
    "eager": lambda: flex_attention,
    "aot_eager": lambda: torch.compile(flex_attention, backend="aot_eager", fullgraph=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_results_and_gradients(xpu, way):
    torch._dynamo.reset()
    q, k, v, slopes, numbers = inputs("xpu", torch.bfloat16)
    bias, document = changes(slopes, numbers)
    blocks = create_block_mask(document, 2, None, ROWS, ROWS, device="xpu", BLOCK_SIZE=64)
    before = flex.calls()
    with flex.use_xeflash():
        out, aux = WAYS[way]()(q, k, v, bias, blocks, enable_gqa=True, return_aux=AuxRequest(lse=True))
    assert flex.calls().torch == before.torch
    assert (flex.calls().xeflash > before.xeflash) == (way != "own")
    (out.float().square().sum() + aux.lse.sum()).backward()
    got = [out, aux.lse, *(x.grad for x in (q, k, v, slopes))]
    for name, x, want in zip(("out", "LSE", "dq", "dk", "dv", "dslopes"), got, by_formula(), strict=True):
        error = (x.cpu().double() - want).norm() / want.norm()
        assert error < 1e-2, f"{name}: {error:.1e}"
