"""Runs cells: builds each model once, checks all ways to compute it, and then has them take turns."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from xeflash.bench import peak
from xeflash.bench.environ import available_memory, too_large
from xeflash.bench.forms import TORCH_DTYPES
from xeflash.bench.limits import Peaks
from xeflash.bench.llm.models import build, parameters_of
from xeflash.bench.llm.rows import row_of
from xeflash.bench.rows import Result
from xeflash.bench.runner import attempt, header
from xeflash.bench.timing import in_turns


@dataclass(frozen=True)
class Options:
    """The device, the rounds, and the ways that take turns: implementations of decoding, or names of attentions."""

    device: str
    rounds: int
    seed: int
    ways: tuple[Any, ...]

    @property
    def names(self) -> dict[str, Any]:
        """Returns the ways by their names."""
        return {str(way): way for way in self.ways}


class Trials(ABC):
    """A model and what all ways do with it; `wrong` tells by name which ways must not be timed, and why."""

    method: ClassVar[Sequence[str]]
    wrong: dict[str, str]

    def __init__(self, options: Options) -> None:
        """Starts without a wrong way."""
        self.options, self.wrong = options, {}

    @staticmethod
    @abstractmethod
    def bytes_of_number(dtype: str, weights: str) -> int:
        """Returns the most bytes that a number of the model takes, beyond the tensors of a call."""

    @abstractmethod
    def inputs(self, cell: Any) -> Any:
        """Returns what all ways compute a cell from."""

    @abstractmethod
    def memory_needed(self, cell: Any, way: Any) -> float:
        """Returns an estimate of the bytes that a call takes beyond the model."""

    def begin(self, cell: Any, inputs: Any, way: Any) -> None:  # noqa: B027
        """Prepares a way for its first sample; by default there is nothing to do."""

    @abstractmethod
    def sample(self, cell: Any, inputs: Any, way: Any) -> Any:
        """Returns what one call gave and took."""

    @abstractmethod
    def result(self, row: Any, cell: Any, inputs: Any, way: Any, samples: Sequence[Any]) -> Result:
        """Returns the result of a way's samples."""


def run(kind: Any, cells: Sequence[Any], options: Options, meter: peak.Meter | None = None) -> Iterator[Result]:
    """Yields the results one by one, so that an interrupted run keeps what it has.

    `kind` is the class of `Trials` that a model, its cells and the options make.
    """
    for (name, layers, dtype, weights), group in itertools.groupby(
        cells, lambda cell: (cell.model, cell.layers, cell.dtype, cell.weights)
    ):
        mine = list(group)
        needed = parameters_of(name, layers) * kind.bytes_of_number(dtype, weights)
        if note := too_large(needed, available_memory(options.device)):
            rows = [row_of(cell, way) for cell in mine for way in options.names]
            yield from (Result(dataclasses.replace(row, status="skipped", note=note)) for row in rows)
            continue
        trials = kind(build(name, layers, dtype, options.device, options.seed), mine, options)
        for cell in mine:
            if meter is not None:
                meter.sample()
            yield from _run_cell(trials, cell)
        del trials


def _run_cell(trials: Trials, cell: Any) -> Iterator[Result]:
    """Times one cell, all ways in turns."""
    options, inputs, failed = trials.options, trials.inputs(cell), {}
    rows = {name: row_of(cell, name) for name in options.names}
    samples: dict[str, list[Any]] = {name: [] for name in rows}

    def tried(name: str, action: Any, needed: float = 0) -> Any:
        found = attempt(rows[name], options.device, lambda: action(cell, inputs, options.names[name]), needed)
        if isinstance(found, Result) and found.row.status != "ok":
            failed[name] = found
        return found

    for name, way in options.names.items():
        if name in trials.wrong:
            failed[name] = Result(dataclasses.replace(rows[name], status="failed", note=trials.wrong[name]))
        else:
            tried(name, trials.begin, trials.memory_needed(cell, way))
    for name in in_turns([name for name in rows if name not in failed], options.rounds):
        if name not in failed:
            samples[name].append(tried(name, trials.sample))
    for name, way in options.names.items():
        result = functools.partial(trials.result, rows[name], cell, inputs, way, samples[name])
        yield failed[name] if name in failed else attempt(rows[name], options.device, result)


def head(kind: type[Trials], options: Options, peaks: Peaks | None) -> dict[str, object]:
    """Returns the block above the rows: environment, peaks, method."""
    return header(options.device, kind.method, peaks)


def element(dtype: str) -> int:
    """Returns the bytes of a number of the model."""
    return int(TORCH_DTYPES[dtype].itemsize)
