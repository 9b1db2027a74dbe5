"""Training steps of a model with several attentions, in turns: time, memory, and whether they compute the same."""

from __future__ import annotations

import copy
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from xeflash.bench import measure, memory
from xeflash.bench.check import ERRORS, said
from xeflash.bench.environ import available_memory, too_large
from xeflash.bench.forms import TORCH_DTYPES, synchronizer
from xeflash.bench.llm.generation import random_tokens, use_attention
from xeflash.bench.llm.models import build, parameters_of
from xeflash.bench.llm.training_rows import TrainCell, result_of, row_without_times
from xeflash.bench.rows import Result
from xeflash.bench.timing import settle

METHOD = [
    "a model of Transformers with random weights; a step is forward pass, loss of the next tokens, backward pass and "
    "AdamW on random tokens; the learning rate is 0: all work is done, and all steps begin with the same weights",
    "in every round each attention makes one step, in rotating order, after two untimed steps; tokens/s by the median; "
    "of sdpa: the median over rounds of sdpa's time / this one's",
    memory.METHOD,
    "before timing, with the fewest tokens: max |error| of the losses of the tokens, and the norm of the error of all "
    "gradients, against the model in fp32 (fp64 for fp32), must each be at most 2 x that of the eager attention + the "
    "rounding of the largest loss, or of the gradients' norm",
]


@dataclass(frozen=True)
class Options:
    """How to measure."""

    device: str
    rounds: int
    seed: int
    attentions: tuple[str, ...]


def enable_checkpointing(model: Any) -> None:
    """Make the backward pass compute the layers again, whose input is all that is kept of them."""
    enable = getattr(model, "activation_checkpointing_enable", None)  # its newer name
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})


class Steps:
    """The training steps of a model on some tokens."""

    def __init__(self, model: Any, optimizer: Any, tokens: Tensor) -> None:
        """Keep them."""
        self._model, self._optimizer, self._tokens = model, optimizer, tokens
        self._synchronize = synchronizer(tokens.device.type)

    def step(self) -> float:
        """Make one; returns the loss."""
        loss = self._model(input_ids=self._tokens, labels=self._tokens, use_cache=False).loss
        loss.backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        return float(loss.item())

    def seconds(self) -> float:
        """Make one; returns its time."""
        settle()
        start = time.perf_counter()
        self.step()
        self._synchronize()
        return time.perf_counter() - start


def _losses_and_gradients(model: Any, tokens: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The loss of each token but the first of a sequence, and the gradients of their mean."""
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
    losses = cross_entropy(logits.flatten(0, 1).double(), tokens[:, 1:].flatten(), reduction="none")
    losses.mean().backward()
    gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in model.parameters()]
    model.zero_grad()
    return losses.detach(), gradients


def _norm(tensors: Iterator[Tensor]) -> float:
    return math.sqrt(sum(float(x.double().square().sum()) for x in tensors))


def disagreements(model: Any, tokens: Tensor, attentions: Sequence[str]) -> dict[str, str]:
    """Return what is wrong with an attention, by its name."""
    exact_model = copy.deepcopy(model)
    dtype = next(model.parameters()).dtype
    use_attention(exact_model, "eager")
    exact_model = exact_model.double() if dtype == torch.float32 else exact_model.float()
    losses, gradients = _losses_and_gradients(exact_model, tokens)
    del exact_model

    def errors(attention: str) -> tuple[float, float]:
        use_attention(model, attention)
        got, found = _losses_and_gradients(model, tokens)
        of_gradients = _norm(x.double() - want for x, want in zip(found, gradients, strict=True))
        return float((got - losses).abs().max()), of_gradients

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


def _memory_needed(model: Any, cell: TrainCell, attention: str) -> int:
    """Bytes that a step needs beyond the model: gradients, logits, and what the layers keep for the backward pass."""
    config, item = model.config, TORCH_DTYPES[cell.dtype].itemsize
    tokens, kept = cell.batch * cell.seq, 1 if cell.checkpointing else config.num_hidden_layers
    layer = tokens * (14 * config.hidden_size + 6 * config.intermediate_size) * item
    gradients = sum(x.numel() for x in model.parameters()) * item
    scores = tokens * cell.seq * config.num_attention_heads if attention == "eager" else 0
    logits = tokens * config.vocab_size * (item + 12)
    return int(gradients + logits + kept * (layer + scores * (4 + item)) + 16 * scores)


def _run_cell(model: Any, optimizer: Any, cell: TrainCell, options: Options, wrong: dict[str, str]) -> Iterator[Result]:
    """Time one cell with all attentions that are right."""
    steps = Steps(model, optimizer, _tokens_of(model, cell, options))
    failed = {name: Result(row_without_times(cell, name, "failed", note)) for name, note in wrong.items()}
    peaks: dict[str, int] = {}
    losses: dict[str, float] = {}
    for attention in options.attentions:
        if attention in failed:
            continue
        if note := too_large(_memory_needed(model, cell, attention), available_memory(options.device)):
            failed[attention] = Result(row_without_times(cell, attention, "skipped", note))
            continue
        try:
            use_attention(model, attention)
            losses[attention] = steps.step()
            peaks[attention] = memory.peak_of(steps.step, options.device)
        except ERRORS as error:
            failed[attention] = Result(row_without_times(cell, attention, "failed", said(error)))
            optimizer.zero_grad()
    names = list(peaks)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(options.rounds):
        shift = turn % max(1, len(names))
        for name in names[shift:] + names[:shift]:
            use_attention(model, name)
            times[name].append(1e3 * steps.seconds())
    for name in options.attentions:
        yield failed[name] if name in failed else result_of(cell, name, times[name], peaks[name], losses[name])


def _tokens_of(model: Any, cell: TrainCell, options: Options) -> Tensor:
    return random_tokens(cell.batch, cell.seq, model.config.vocab_size, options.device, options.seed)


def run(cells: Sequence[TrainCell], options: Options) -> Iterator[Result]:
    """Yield the results one by one, so that an interrupted run keeps what it has."""
    for (name, layers, dtype), group in itertools.groupby(cells, lambda cell: (cell.model, cell.layers, cell.dtype)):
        mine = list(group)
        # parameters, gradients, AdamW's two; the exact ones of the check, their gradients, and the difference
        item, exact = (4, 8) if dtype == "fp32" else (2, 4)
        needed = parameters_of(name, layers) * (4 * item + 3 * exact)
        if note := too_large(needed, available_memory(options.device)):
            for cell in mine:
                yield from (Result(row_without_times(cell, x, "skipped", note)) for x in options.attentions)
            continue
        model = build(name, layers, dtype, options.device, options.seed).train()
        if mine[0].checkpointing:
            enable_checkpointing(model)
        fewest = min(mine, key=lambda cell: cell.batch * cell.seq)
        wrong = disagreements(model, _tokens_of(model, fewest, options), options.attentions)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
        for cell in mine:
            yield from _run_cell(model, optimizer, cell, options, wrong)
        del model, optimizer


def header(options: Options) -> dict[str, object]:
    """Return the block above the rows: environment, method."""
    return measure.header(options.device, METHOD)
