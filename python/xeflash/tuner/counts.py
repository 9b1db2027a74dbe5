"""Choices by counts: what the machine code of candidates executes for a score, where no device takes the time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from xeflash.jit.kernel import render
from xeflash.jit.offline import compile_offline
from xeflash.jit.product import render_product
from xeflash.sim.binary import CompileError, compile_spirv, inspect
from xeflash.tune.desc import Config, Desc, ProductDesc
from xeflash.tune.table import pick
from xeflash.tune.tuned import Choice, Trial
from xeflash.tuner.cases import Row

_WORTH = 1.02  # under 2 % of instructions, the tables stay


def kernels_of(desc: Desc | ProductDesc, config: Config | None = None) -> list[dict[str, Any]]:
    """Returns the counts of each kernel in a native binary, with these tiles or those of the tables."""
    source = render(desc, config) if isinstance(desc, Desc) else render_product(desc, config)
    binary = compile_spirv(desc.arch, compile_offline(source).binary, "-vc-codegen -doubleGRF")
    return inspect(desc.arch, binary)


def kernel_of(desc: Desc | ProductDesc, config: Config | None = None) -> dict[str, Any]:
    """Returns the counts of the first kernel of a description."""
    return next(kernel for kernel in kernels_of(desc, config) if desc.entries[0] in kernel["name"])


def count(desc: Desc, blocks: tuple[int, int]) -> Mapping[str, float]:
    """Counts the machine code of these blocks; scores are those of all threads of a tile."""
    config = pick(desc, blocks)
    kernel = kernel_of(desc, config)
    loop, tiles = kernel["loop"], -(-desc.rows // config.block_q)
    threads = config.parts * (2 if config.pairs else 1)
    return {
        "loop": loop["instructions"],
        "per 1000 scores": 1000 * loop["instructions"] * threads * tiles / (desc.rows * config.block_k),
        "dpas": loop["dpas"] / loop["instructions"], "moves": loop["moves"], "sends": loop["sends"],
        "scratch": kernel["scratch"],
    }  # fmt: skip


class Counted:
    """Chooses by the instructions of the main loop for a score."""

    def __init__(self, jobs: int, on_time: Callable[[], None]) -> None:
        """Keeps how many compilers run at a time; `on_time` raises an error when there is no time for another row."""
        self._jobs, self._on_time = jobs, on_time

    def choose(self, row: Row, texts: Sequence[str]) -> Choice[Any]:  # noqa: ARG002
        """Returns the choice for a row; what spills, or does not compile, is out."""
        self._on_time()
        with ThreadPoolExecutor(self._jobs) as pool:
            trials = list(pool.map(lambda blocks: self._trial(row.kernels[0], blocks), row.candidates))
        first = trials[0].ms
        found = [_beside(first, x) for x in trials]
        best = max(found, key=lambda x: 0 if x.note or not x.ratio else x.ratio)
        return Choice(best.value if (best.ratio or 0) >= _WORTH else row.candidates[0], tuple(found))

    def _trial(self, desc: Desc, blocks: Any) -> Trial[Any]:
        try:
            counted = count(desc, blocks)
        except (CompileError, RuntimeError) as error:
            return Trial(blocks, note=str(error).splitlines()[0])
        return Trial(blocks, counted["per 1000 scores"], note="spills" if counted["scratch"] else "")


def _beside(first: float | None, trial: Trial[Any]) -> Trial[Any]:
    """Returns the trial with its ratio, which has no spread."""
    ratio = first / trial.ms if first and trial.ms else None
    return dataclasses.replace(trial, ratio=ratio, low=ratio, high=ratio)
