"""Tile sizes of the forward on a GPU, compared by what their machine code consists of: rows for xeflash/tune/xe.py.

    python perf/sweep.py --device bmg --dtype bf16 --dim 128
    python perf/sweep.py --device dg2 --dim 64 --block-q 8,16 --block-k 16,32,64

Counted in the main loop, whose rare branches (mask, rescaling) are in it too; nothing is timed. A row that spills is
marked: it is never the better one. Needs ocloc and the simulator, see xeflash.sim.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from xeflash.bench.cases import DTYPES, parse_choices, parse_size
from xeflash.jit.kernel import DTYPE_NAMES, Desc, render
from xeflash.jit.offline import compile_offline
from xeflash.sim.binary import CompileError, compile_spirv, inspect
from xeflash.tune import pick, xe


@dataclass(frozen=True)
class Row:
    """One choice of blocks and its counts; per 1000 scores where it says so."""

    block_q: int
    block_k: int
    instructions: int
    per_score: float
    dpas_share: float
    moves: int
    sends: int
    scratch: int


def measure(desc: Desc, block_q: int, block_k: int) -> Row:
    """Compile the kernel with these blocks and count."""
    config = pick(desc, (block_q, block_k))
    binary = compile_spirv(desc.arch, compile_offline(render(desc, config)).binary, "-vc-codegen -doubleGRF")
    (kernel,) = inspect(desc.arch, binary)
    loop = kernel["loop"]
    return Row(
        block_q,
        block_k,
        loop["instructions"],
        1000 * loop["instructions"] / (block_q * config.block_k),
        loop["dpas"] / loop["instructions"],
        loop["moves"],
        loop["sends"],
        kernel["scratch"],
    )


def numbers(text: str) -> tuple[int, ...]:
    """A comma list of sizes."""
    return tuple(parse_size(word) for word in text.split(","))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", choices=xe.ARCHITECTURES, required=True)
    parser.add_argument("--dtype", type=lambda text: parse_choices(text, DTYPES), default=("bf16",))
    parser.add_argument("--dim", type=numbers, default=(64, 128, 256))
    parser.add_argument("--block-q", type=numbers, default=(8, 16))
    parser.add_argument("--block-k", type=numbers, default=(16, 32, 64))
    arguments = parser.parse_args()
    console = Console()
    access = "dwords" if arguments.device == "dg2" else "block2d"
    for dtype in arguments.dtype:
        for dim in arguments.dim:
            desc = Desc("flash_fwd", arguments.device, DTYPE_NAMES[dtype], dim, dim, 128, access=access)
            chosen = xe.blocks(desc)
            table = Table("block_q", "block_k", "loop", "per 1000 scores", "dpas", "moves", "sends", "scratch", "")
            table.title = f"{arguments.device} {dtype} head dim {dim}"
            for block_q in arguments.block_q:
                for block_k in arguments.block_k:
                    try:
                        row = measure(desc, block_q, block_k)
                    except (CompileError, RuntimeError) as error:
                        console.print(f"{block_q} x {block_k}: {str(error).splitlines()[0]}", style="red")
                        continue
                    note = "spills" if row.scratch else "in the table" if (block_q, block_k) == chosen else ""
                    table.add_row(
                        str(block_q), str(block_k), str(row.instructions), f"{row.per_score:.0f}",
                        f"{100 * row.dpas_share:.1f} %", str(row.moves), str(row.sends), str(row.scratch), note,
                    )  # fmt: skip
            console.print(table)


if __name__ == "__main__":
    main()
