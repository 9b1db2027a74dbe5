"""python -m tests.fuzz: random calls, judged; see the package."""

from __future__ import annotations

import argparse
import sys

from shards import parse

from .run import Run, run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of all cases (default 0)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the number of the first one (default 0)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--cases", type=int, default=1000, metavar="N", help="how many (default 1000)")
    which.add_argument("--shard", metavar="K/N", help="the K-th of N parts of 100,000 cases, or of 1,000 on a GPU")
    which.add_argument("--case", type=int, metavar="N", help="only this one, and show its arguments")
    parser.add_argument("--function", metavar="NAME", help="only cases of this function")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--sim", metavar="DEVICE", help="on this simulated GPU: pvc, bmg or dg2 (default: the CPU)")
    where.add_argument("--gpu", action="store_true", help="on the GPU of this machine")
    parser.add_argument(
        "--width",
        choices=("narrow", "usual", "wide", "sweep"),
        default="usual",
        help="of the kernels (wide: many to compile; sweep: few, with every size, on the CPU)",
    )
    parser.add_argument("--unmasked", action="store_true", help="faults that are known count, too")
    parser.add_argument("--stop", action="store_true", help="stop at the first fault")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case is not None:
        options.first, options.cases = options.case, 1
    device = options.sim or ("gpu" if options.gpu else "cpu")
    if options.shard:
        try:
            number, shards = parse(options.shard)
        except ValueError as error:
            parser.error(str(error))
        total = 100_000 if device == "cpu" else 1_000
        options.first, until = (total * k // shards for k in (number - 1, number))
        options.cases = until - options.first
    cases = Run(
        options.seed, options.first, options.cases, device, options.width, options.function, options.unmasked,
        options.case is not None,
    )  # fmt: skip
    if options.worker:
        from .worker import work

        work(cases)
        return 0
    return run(cases, stop=options.stop)


sys.exit(main())
