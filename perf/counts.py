"""What the machine code of xeflash consists of and does on simulated GPUs, counted; nothing is timed.

    python perf/counts.py backward --device pvc,bmg,dg2 --head-dim 64,128,256
    python perf/counts.py backward --device dg2 --dtype fp16 --head-dim 128 --format csv

`python perf/counts.py FAMILY --help` says what each counts. Needs ocloc and the simulator, see xeflash.sim.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable

from counting import backward
from counting.simulated import DTYPES
from counting.tables import PRINTERS, Table
from xeflash import sim
from xeflash.bench.cases import parse_choices, parse_sizes

FAMILIES = {"backward": backward}
ATTENTION = ("backward",)  # with types and head dims to choose


def add_family(families: argparse._SubParsersAction[argparse.ArgumentParser], name: str) -> None:
    """A sub-command; its module says the rest."""
    description = FAMILIES[name].__doc__ or ""
    parser = families.add_parser(
        name,
        description=description,
        help=description.splitlines()[0],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--device",
        required=True,
        type=lambda text: parse_choices(text, sim.DEVICES),
        help="of " + ", ".join(sim.DEVICES),
    )
    if name in ATTENTION:
        parser.add_argument("--dtype", type=lambda text: parse_choices(text, tuple(DTYPES)), default=("bf16",))
        parser.add_argument("--head-dim", type=parse_sizes, default=(64, 128, 256), help="default: 64,128,256")
    parser.add_argument("--format", choices=PRINTERS, default="text")
    FAMILIES[name].add_options(parser)


def main() -> int:
    """Command line; 1 if a table has complaints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    families = parser.add_subparsers(dest="family", required=True, metavar="FAMILY")
    for name in FAMILIES:
        add_family(families, name)
    options = parser.parse_args()
    sim.enable(*options.device, check="none")
    wrong = []

    def watched() -> Iterable[Table | str]:
        for table in FAMILIES[options.family].report(options):
            if isinstance(table, Table) and table.complaints:
                wrong.extend(table.rows)
            yield table

    PRINTERS[options.format](watched())
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
