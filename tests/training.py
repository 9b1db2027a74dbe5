"""Training of tiny models of Transformers: the losses of each step."""

from __future__ import annotations

import torch
from tiny_models import VOCABULARY, decoder


def batches(steps: int, rows: int = 2, tokens: int = 24, padded: bool = True) -> list[dict[str, torch.Tensor]]:
    """Tokens that count upwards, so that there is something to learn; every other batch may be padded on the left."""
    generator = torch.Generator().manual_seed(3)
    drawn = []
    for step in range(steps):
        first = torch.randint(3, VOCABULARY, (rows, 1), generator=generator)
        ids = (first + torch.arange(tokens)) % (VOCABULARY - 3) + 3
        mask = torch.ones_like(ids)
        if padded and step % 2:
            mask[0, :5] = 0
        drawn.append({"input_ids": ids.masked_fill(mask == 0, 0), "attention_mask": mask})
    return drawn


def train(
    name: str,
    implementation: str,
    steps: int,
    device: str = "cpu",
    compiled: bool = False,
    checkpointed: bool = False,
    padded: bool = True,
    **changes: object,
) -> list[float]:
    """The losses of a model from fixed weights."""
    model = decoder(name, implementation=implementation, **changes).to(device).train()
    if checkpointed:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    run = torch.compile(model, backend="aot_eager", dynamic=True) if compiled else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for batch in batches(steps, padded=padded):
        batch = {key: x.to(device) for key, x in batch.items()}
        padding = batch["attention_mask"] == 0
        # What padding predicts counts for nothing, as eager attention lets it see all padding, and others nothing.
        labels = batch["input_ids"].masked_fill(padding | padding.roll(1, dims=1), -100)
        loss = run(**batch, labels=labels, use_cache=False).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses
