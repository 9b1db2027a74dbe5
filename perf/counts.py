"""Counts of the machine code of xeflash, and of what it does on simulated GPUs.

    python perf/counts.py forward --device bmg                                  # bf16; head dims 64, 128, 256
    python perf/counts.py dims --device bmg --keys 77,1024                 # head dims of image models
    python perf/counts.py backward --device pvc,bmg,dg2 --dtype bf16,fp16 --head-dim 64,128 --format csv
    python perf/counts.py decode --device dg2 --keys 4k
    python perf/counts.py decode --device bmg --batch 8 --heads 10/2 --keys 8k --head-dim 128
    python perf/counts.py verify --device bmg,pvc,dg2 --tree 8,32 --page 16
    python perf/counts.py blocks --device bmg,pvc,dg2 --block-mask topk:0.5,0.1
    python perf/counts.py linear --device dg2 --rows 1,64
    python perf/counts.py spills --device bmg --count 500 --seed 7
    python perf/counts.py speed --device pvc                                    # of the simulator itself
    python perf/counts.py compilers --compiler mixture --device pvc

`python perf/counts.py FAMILY --help` says what each counts. Needs ocloc and the simulator, see xeflash.sim.
"""

from __future__ import annotations

import argparse
import sys

from counting import backward, blocks, compilers, decode, dims, forward, linear, speed, spills, verify
from counting.tables import PRINTERS

FAMILIES = {"forward": forward, "backward": backward, "decode": decode, "linear": linear, "spills": spills}
FAMILIES |= {"verify": verify, "blocks": blocks, "dims": dims, "speed": speed, "compilers": compilers}


def main() -> int:
    """Runs the command line; returns 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    families = parser.add_subparsers(dest="family", required=True, metavar="FAMILY")
    for name, family in FAMILIES.items():
        text = family.__doc__ or ""
        form = argparse.RawDescriptionHelpFormatter
        own = families.add_parser(name, description=text, help=text.splitlines()[0], formatter_class=form)
        family.add_options(own)
        own.add_argument("--format", choices=PRINTERS, default="text", help="default: text")
    parser.set_defaults(wrong=0)
    options = parser.parse_args()
    PRINTERS[options.format](FAMILIES[options.family].report(options))
    return 1 if options.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
