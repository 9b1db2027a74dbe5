"""Runs the cells: builds each model once, checks, then generates in rounds, the implementations in turns."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from xeflash.bench import peak
from xeflash.bench.check import ERRORS, said
from xeflash.bench.environ import available_memory, too_large
from xeflash.bench.forms import TORCH_DTYPES
from xeflash.bench.limits import Peaks
from xeflash.bench.llm import check, counts
from xeflash.bench.llm.cells import Cell, Implementation
from xeflash.bench.llm.generation import Generation, generate, make_cache, prompt_of
from xeflash.bench.llm.instruments import attention_timed, copies_counted
from xeflash.bench.llm.linears import Models, prepared
from xeflash.bench.llm.models import build, kv_bytes, parameters_of
from xeflash.bench.llm.rows import Shares, result_of, row_without_times
from xeflash.bench.measure import header as header_of
from xeflash.bench.rows import Result
from xeflash.bench.timing import settle

METHOD = [
    "a model of Transformers with random weights, its generate() on a prompt of random tokens; times are of its logits "
    "processors: TTFT to the first, TPOT from one to the next, over all rounds",
    "in every round each implementation generates once, in rotating order, after one untimed call on the shortest "
    "context; attention/cache: xe is XeCache, dynamic and static are Transformers'",
    "weights int8 and int4: linear layers but the head are rounded to nearest when the model is loaded, with a "
    "scale, a power of two, for 128 inputs, and with +head the head, too; +linear: xeflash.linear computes linear "
    "layers, and reads these; else "
    "torch does, with the same numbers in the dtype of the model",
    "tokens/s = batch / median TPOT; of sdpa: times that of sdpa/dynamic",
    "in attention: attention function, cache update and reordering, timed in a pass of their own, of a token's time; "
    "KV GB/s: bytes of K and V that a token attends to / that time; of read peak: what memory gives, or a "
    "cache where that is passed",
    "copied / token: bytes that torch's operations in the cache's methods write, counted in a pass of its own",
    "peak memory: above what was there before generate()",
]
COUNTS_METHOD = [
    "a model of Transformers with random weights on the CPU, its attention on the simulated GPU; counts of one token, "
    "after the prompt, all layers; nothing is timed",
]
_SHORT_TOKENS = 6  # of the passes with instruments


@dataclass(frozen=True)
class Options:
    """How to measure."""

    device: str  # cpu, xpu, or sim:pvc
    rounds: int
    seed: int
    implementations: tuple[Implementation, ...]

    @property
    def simulated(self) -> bool:
        """Whether a simulated GPU counts, and nothing is timed."""
        return self.device.startswith("sim:")

    @property
    def torch_device(self) -> str:
        """Where the model is."""
        return "cpu" if self.simulated else self.device


def _memory_needed(cell: Cell, implementation: Implementation, config: Any) -> int:
    """Bytes that a prompt needs beyond the model: scores, where they are stored in memory, and a copy of the cache."""
    rows = cell.batch * cell.beams
    cache = 3 * rows * kv_bytes(config, cell.context, cell.dtype)
    if implementation.attention != "eager":
        return cache
    return cache + int(rows * config.num_attention_heads * cell.context**2 * (4 + 4 + 2))


def _shares(model: Any, cell: Cell, implementation: Implementation, prompt: Tensor) -> Shares:
    """Where the time of a token goes, and what the cache copies for it."""
    cell = replace(cell, new_tokens=min(_SHORT_TOKENS, cell.new_tokens))
    tokens = cell.new_tokens - 1

    def cache() -> Any:
        return make_cache(cell, implementation.cache, model.config)

    timed = cache()
    with attention_timed(model, timed, prompt.device.type) as attention:
        total = sum(generate(model, cell, prompt, timed).steps)
    copies = []
    for new in (1, cell.new_tokens):  # the difference is that of the tokens after the first
        counted = cache()
        with copies_counted(counted) as written:
            generate(model, replace(cell, new_tokens=new), prompt, counted)
            copies.append(written())
    return Shares(attention.seconds / tokens, total / tokens, (copies[1] - copies[0]) // tokens)


def _run_cell(models: Models, cell: Cell, options: Options) -> Iterator[Result]:
    """Time one cell in all implementations."""
    model = models.torch
    prompt = prompt_of(cell, model.config.vocab_size, options.torch_device, options.seed)
    rounds: dict[Implementation, list[Generation]] = {}
    failed: dict[Implementation, Result] = {}
    free = available_memory(options.torch_device)
    for implementation in options.implementations:
        if note := too_large(_memory_needed(cell, implementation, model.config), free):
            failed[implementation] = Result(row_without_times(cell, implementation, "skipped", note))
        else:
            rounds[implementation] = []
    names = list(rounds)
    for turn in range(options.rounds):
        shift = turn % max(1, len(names))
        for implementation in names[shift:] + names[:shift]:
            if implementation in failed:
                continue
            model = models.by(implementation)
            settle()
            try:
                cache = make_cache(cell, implementation.cache, model.config)
                rounds[implementation].append(generate(model, cell, prompt, cache))
            except ERRORS as error:
                note = said(error)
                failed[implementation] = Result(row_without_times(cell, implementation, "failed", note))
    read = cell.batch * cell.beams * kv_bytes(model.config, cell.context, cell.dtype)
    for implementation in options.implementations:
        if implementation in failed:
            yield failed[implementation]
            continue
        shares = _shares(models.by(implementation), cell, implementation, prompt)
        yield result_of(cell, implementation, rounds[implementation], shares, read)


def _check(models: Models, cells: Sequence[Cell], options: Options) -> str:
    """Return what is wrong with an implementation, or "". Also what compiles and warms up everything."""
    shortest = min(cells, key=lambda cell: (cell.beams, cell.context))
    prompt = prompt_of(shortest, models.torch.config.vocab_size, options.torch_device, options.seed)
    return check.disagreement(models, shortest, options.implementations, prompt)


def _model_of(cell: Cell) -> tuple[str, int | None, str, str]:
    return cell.model, cell.layers, cell.dtype, cell.weights


def run(cells: Sequence[Cell], options: Options, meter: peak.Meter | None = None) -> Iterator[Result]:
    """Yield the results one by one, so that an interrupted run keeps what it has."""
    patched = any(implementation.linear == "xeflash" for implementation in options.implementations)
    for (name, layers, dtype, weights), group in itertools.groupby(cells, _model_of):
        mine = list(group)
        exact = 8 if dtype == "fp32" else 4  # of the check's copy
        packed = {"same": 0, "int8": 4, "int4": 3}[weights.partition("+")[0]]  # bytes of a weight while it is quantised
        needed = parameters_of(name, layers) * (TORCH_DTYPES[dtype].itemsize + exact + packed)
        if not options.simulated and (note := too_large(needed, available_memory(options.torch_device))):
            for cell in mine:
                yield from (Result(row_without_times(cell, x, "skipped", note)) for x in options.implementations)
            continue
        model = build(name, layers, dtype, options.torch_device, options.seed)
        with torch.inference_mode():
            models = prepared(model, weights, patched)
            wrong = "" if options.simulated else _check(models, mine, options)
            for cell in mine:
                if wrong:
                    yield from (
                        Result(row_without_times(cell, implementation, "failed", wrong))
                        for implementation in options.implementations
                    )
                elif options.simulated:
                    yield counts.count(model, cell, options.seed)
                else:
                    if meter is not None:
                        meter.sample()
                    yield from _run_cell(models, cell, options)
        del model, models


def header(options: Options, peaks: Peaks) -> dict[str, object]:
    """Return the block above the rows: environment, peaks, method."""
    return header_of(options.device, COUNTS_METHOD if options.simulated else [*METHOD, check.METHOD], peaks)
