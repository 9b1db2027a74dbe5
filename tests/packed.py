"""Rows that hold several documents, for training: what each document gives on its own, and what the rows give."""

import torch
import transformers
from tiny_models import VOCABULARY, prompts

LENGTHS = [[5, 8], [3, 1, 9]]  # of the documents of each row
POSITIONS = torch.tensor([[p for n in row for p in range(n)] for row in LENGTHS])
IDS = prompts(rows=2, tokens=13)["input_ids"]
ONES = torch.ones_like(IDS)
WEIGHTS = torch.randn(2, 13, VOCABULARY, generator=torch.Generator().manual_seed(3))


def spans(row):
    at = 0
    for length in LENGTHS[row]:
        yield slice(at, at + length)
        at += length


def alone(model, rows=(0, 1)):
    """What eager attention gives for each document on its own: logits, then gradients of all parameters."""
    model.set_attn_implementation("eager")
    model.zero_grad()
    logits = []
    for row in rows:
        for span in spans(row):
            out = model(IDS[None, row, span], use_cache=False).logits[0]
            (out * WEIGHTS[row, span]).sum().backward()
            logits.append(out.detach())
    return torch.cat(logits), [p.grad for p in model.parameters()]


def together(model, implementation, rows=(0, 1), **inputs):
    """The same of rows."""
    model.set_attn_implementation(implementation)
    model.zero_grad()
    rows, device = list(rows), next(model.parameters()).device
    inputs = {name: x.to(device) if isinstance(x, torch.Tensor) else x for name, x in inputs.items()}
    out = model(IDS[rows].reshape(inputs.pop("shape", (len(rows), 13))).to(device), **inputs).logits
    (out * WEIGHTS[rows].reshape(out.shape).to(device)).sum().backward()
    return out.detach().flatten(0, 1).cpu(), [p.grad.cpu() for p in model.parameters()]


def collated(**how):
    """What the collator without padding gives beside the tokens, which are one row of shape (1, 26)."""
    rows = [{"input_ids": IDS[row, span].tolist()} for row in range(2) for span in spans(row)]
    batch = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True, **how)(rows)
    return {name: x for name, x in batch.items() if name not in ("labels", "input_ids")}


def check(got, want):
    torch.testing.assert_close(got[0], want[0], atol=2e-5, rtol=1e-4)
    for x, y in zip(got[1], want[1], strict=True):
        torch.testing.assert_close(x, y, atol=1e-5 * float(y.abs().max()) + 1e-6, rtol=1e-3)
