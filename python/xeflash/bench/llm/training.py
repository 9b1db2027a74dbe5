"""Training steps of a model with several attentions: time, memory, and whether they compute the same."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from xeflash.bench import memory
from xeflash.bench.check import ERRORS, said
from xeflash.bench.forms import synchronizer
from xeflash.bench.llm.cells import TrainCell
from xeflash.bench.llm.generation import random_tokens, use_attention
from xeflash.bench.llm.rows import TrainRow, trained
from xeflash.bench.llm.run import Options, Trials, element
from xeflash.bench.rows import Result
from xeflash.bench.timing import settle


def enable_checkpointing(model: Any) -> None:
    """Makes the backward pass compute the layers again, whose input is all that is kept of them."""
    enable = getattr(model, "activation_checkpointing_enable", None)  # its newer name
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})


class Steps:
    """The training steps of a model on some tokens."""

    def __init__(self, model: Any, optimizer: Any, tokens: Tensor) -> None:
        """Keeps them."""
        self._model, self._optimizer, self._tokens = model, optimizer, tokens
        self._synchronize = synchronizer(tokens.device.type)
        self.peaks: dict[str, int] = {}
        self.losses: dict[str, float] = {}

    def step(self) -> float:
        """Makes one step; returns the loss."""
        loss = self._model(input_ids=self._tokens, labels=self._tokens, use_cache=False).loss
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(loss.item())

    def seconds(self) -> float:
        """Makes one step; returns its time."""
        settle()
        start = time.perf_counter()
        self.step()
        self._synchronize()
        return time.perf_counter() - start


class Training(Trials):
    """A model that is trained, with attentions that give the same losses and gradients."""

    method = (
        "a model of Transformers with random weights; a step is forward pass, loss of the next tokens, backward pass "
        "and AdamW on random tokens; the learning rate is 0: all work is done, and all steps begin "
        "with the same weights",
        "in every round each attention makes one step, in rotating order, after two untimed steps; tokens/s by the "
        "median; ratio per round: median (lowest to highest) over rounds of sdpa's time / this one's",
        memory.METHOD,
        "before timing, with the fewest tokens: max |error| of the losses of the tokens, and the norm of the error of "
        "all gradients, against the model in fp32 (fp64 for fp32), must each be at most 2 x that of the eager "
        "attention + the rounding of the largest loss, or of the gradients' norm",
    )

    def __init__(self, model: Any, cells: Sequence[TrainCell], options: Options) -> None:
        """Checks all attentions with the fewest tokens."""
        super().__init__(options)
        self._model = model.train()
        if cells[0].checkpointing:
            enable_checkpointing(model)
        fewest = min(cells, key=lambda cell: cell.batch * cell.seq)
        self.wrong = disagreements(model, self._tokens(fewest), options.ways)
        self._optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)

    @staticmethod
    def bytes_of_number(dtype: str, weights: str) -> int:  # noqa: ARG004
        """Returns the bytes of a parameter, its gradient, AdamW's two, and of the check's exact ones."""
        return 4 * element(dtype) + 3 * (8 if dtype == "fp32" else 4)

    def _tokens(self, cell: TrainCell) -> Tensor:
        vocabulary = self._model.config.vocab_size
        return random_tokens(cell.batch, cell.seq, vocabulary, self.options.device, self.options.seed)

    def inputs(self, cell: TrainCell) -> Steps:
        """Returns the steps on a cell's tokens."""
        return Steps(self._model, self._optimizer, self._tokens(cell))

    def memory_needed(self, cell: TrainCell, way: str) -> float:
        """Returns the bytes of gradients, logits, and what the layers keep for the backward pass."""
        config, item = self._model.config, element(cell.dtype)
        tokens, kept = cell.batch * cell.seq, 1 if cell.checkpointing else config.num_hidden_layers
        layer = tokens * (14 * config.hidden_size + 6 * config.intermediate_size) * item
        gradients = sum(x.numel() for x in self._model.parameters()) * item
        scores = tokens * cell.seq * config.num_attention_heads if way == "eager" else 0
        logits = tokens * config.vocab_size * (item + 12)
        return float(gradients + logits + kept * (layer + scores * (4 + item)) + 16 * scores)

    def begin(self, cell: TrainCell, inputs: Steps, way: str) -> None:  # noqa: ARG002
        """Makes two untimed steps, the second one to measure memory."""
        inputs.losses[way] = self._step(inputs.step, way)
        inputs.peaks[way] = memory.peak_of(inputs.step, self.options.device)

    def sample(self, cell: TrainCell, inputs: Steps, way: str) -> float:  # noqa: ARG002
        """Returns the milliseconds of a step."""
        return 1e3 * self._step(inputs.seconds, way)

    def _step(self, step: Any, way: str) -> float:
        use_attention(self._model, way)
        self._optimizer.zero_grad()  # what a step left that failed
        return float(step())

    def result(self, row: TrainRow, cell: TrainCell, inputs: Steps, way: str, samples: Sequence[float]) -> Result:  # noqa: ARG002
        """Returns the result of all rounds."""
        return trained(row, samples, inputs.peaks[way], inputs.losses[way])


def _losses_and_gradients(model: Any, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Returns the loss of each token but the first of a sequence, and the gradients of their mean."""
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
    losses = cross_entropy(logits.flatten(0, 1).double(), tokens[:, 1:].flatten(), reduction="none")
    losses.mean().backward()
    gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in model.parameters()]
    model.zero_grad()
    return losses.detach(), gradients


def _norm(tensors: Iterator[Tensor]) -> float:
    return math.sqrt(sum(float(x.double().square().sum()) for x in tensors))


def disagreements(model: Any, tokens: Tensor, attentions: Sequence[str]) -> dict[str, str]:
    """Returns what is wrong with an attention, by its name."""
    exact_model = copy.deepcopy(model)
    dtype = next(model.parameters()).dtype
    use_attention(exact_model, "eager")
    exact_model = exact_model.double() if dtype == torch.float32 else exact_model.float()
    losses, gradients = _losses_and_gradients(exact_model, tokens)
    del exact_model

    def errors(attention: str) -> tuple[float, float]:
        use_attention(model, attention)
        got, found = _losses_and_gradients(model, tokens)
        off = _norm(x.double() - want for x, want in zip(found, gradients, strict=True))
        return float((got - losses).abs().max()), off

    eps = torch.finfo(dtype).eps / 2
    sizes = float(losses.max()), _norm(iter(gradients))
    allowed = [2 * error + eps * size for error, size in zip(errors("eager"), sizes, strict=True)]
    wrong = {}
    for attention in attentions:
        try:
            found = errors(attention)
        except ERRORS as failure:
            wrong[attention] = said(failure)
            model.zero_grad()
            continue
        for what, error, limit in zip(("losses", "gradients"), found, allowed, strict=True):
            if not error <= limit:
                wrong.setdefault(attention, f"wrong: error of {what} {error:.3g}, allowed {limit:.3g}")
    return wrong
