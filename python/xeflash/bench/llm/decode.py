"""Generation of tokens by a model in several implementations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from xeflash.bench.llm import check
from xeflash.bench.llm.cells import Cell, Implementation
from xeflash.bench.llm.generation import Generation, generate, make_cache, prompt_of
from xeflash.bench.llm.instruments import attention_timed, copies_counted
from xeflash.bench.llm.linears import prepared
from xeflash.bench.llm.models import kv_bytes
from xeflash.bench.llm.rows import LlmRow, Shares, generated
from xeflash.bench.llm.run import Options, Trials, element
from xeflash.bench.rows import Result
from xeflash.bench.timing import settle

_SHORT_TOKENS = 6  # of the passes with instruments
_PACKED = {"same": 0, "int8": 4, "int4": 3}  # bytes of a weight while it is quantised


class Decoding(Trials):
    """A model that generates tokens, in implementations that agree."""

    method = (
        "a model of Transformers with random weights, its generate() on a prompt of random tokens; times are of its "
        "logits processors: TTFT to the first, TPOT from one to the next, over all rounds: median (minimum, "
        "interquartile range)",
        "in every round each implementation generates once, in rotating order, after one untimed call on the shortest "
        "context; attention/cache: xe is XeCache, behind it its type; dynamic and static are Transformers'",
        "weights int8 and int4: linear layers but the head are rounded to nearest when the model is loaded, with a "
        "scale, a power of two, for 128 inputs, and with +head the head, too; +linear: xeflash.linear computes linear "
        "layers, and reads these; else torch does, with the same numbers in the dtype of the model",
        "tokens/s = batch / median TPOT; ratio per round: median (lowest to highest) over rounds of the median TPOT of "
        "sdpa/dynamic / this one's",
        "in attention: attention function, cache update and reordering, timed in a pass of their own, of a token's "
        "time; KV GB/s: bytes of K and V that a token attends to / that time; of read peak: what memory gives, or a "
        "cache where that is passed",
        "rest of a step: TPOT without its part in attention; ways with linear layers by the same library have it in "
        "common, so where it differs by more than 20 %, and by more than attention does, the machine was busy",
        "copied / token: bytes that torch's operations in the cache's methods write, counted in a pass of its own",
        "peak memory: above what was there before generate()",
        check.METHOD,
    )

    def __init__(self, model: Any, cells: Sequence[Cell], options: Options) -> None:
        """Quantises the model, and checks all implementations on the shortest prompt, which warms up everything."""
        super().__init__(options)
        patched = any(way.linear == "xeflash" for way in options.ways)
        shortest = min(cells, key=lambda cell: (cell.beams, cell.context))
        with torch.inference_mode():
            self._models = prepared(model, cells[0].weights, patched)
            wrong = check.disagreement(self._models, shortest, options.ways, self.inputs(shortest))
        self.wrong = dict.fromkeys(options.names, wrong) if wrong else {}

    @staticmethod
    def bytes_of_number(dtype: str, weights: str) -> int:
        """Returns the bytes of the model, of the check's copy, and of a weight that is being quantised."""
        return element(dtype) + (8 if dtype == "fp32" else 4) + _PACKED[weights.partition("+")[0]]

    def inputs(self, cell: Cell) -> Tensor:
        """Returns the prompt."""
        vocabulary = self._models.torch.config.vocab_size
        return prompt_of(cell, vocabulary, self.options.device, self.options.seed)

    def memory_needed(self, cell: Cell, way: Implementation) -> float:
        """Returns the bytes of scores, where they are stored in memory, and of a copy of the cache."""
        rows, config = cell.batch * cell.beams, self._models.torch.config
        scores = rows * config.num_attention_heads * cell.context**2 * (4 + 4 + 2) if way.attention == "eager" else 0
        return 3 * rows * kv_bytes(config, cell.context, cell.dtype) + scores

    def sample(self, cell: Cell, inputs: Tensor, way: Implementation) -> Generation:
        """Returns one call of generate."""
        model = self._models.by(way)
        settle()
        with torch.inference_mode():
            return generate(model, cell, inputs, make_cache(cell, way, model.config))

    def result(
        self, row: LlmRow, cell: Cell, inputs: Tensor, way: Implementation, samples: Sequence[Generation]
    ) -> Result:
        """Returns the result of all rounds, with what the instruments find."""
        model = self._models.by(way)
        dtype = cell.dtype if way.cache_dtype == "same" else way.cache_dtype
        read = cell.batch * cell.beams * kv_bytes(model.config, cell.context, dtype)
        with torch.inference_mode():
            return generated(row, samples, shares(model, cell, way, inputs), read)


def shares(model: Any, cell: Cell, implementation: Implementation, prompt: Tensor) -> Shares:
    """Returns where the time of a token goes, and what the cache copies for it."""
    cell = replace(cell, new_tokens=min(_SHORT_TOKENS, cell.new_tokens))
    tokens = cell.new_tokens - 1

    def cache() -> Any:
        return make_cache(cell, implementation, model.config)

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
