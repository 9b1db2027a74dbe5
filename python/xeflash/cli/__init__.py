"""The console script `xeflash`: doctor, selftest, report, bench, tune, compile, inspect, hub, flash-attn, comfyui.

Nothing heavy is imported here: `xeflash doctor` must be able to say what is wrong with an
installation in which nothing else can be imported.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence


def build_parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command; each subcommand sets `run`."""
    from xeflash.bench.environ import package_version
    from xeflash.cli import bench, comfyui, compile_command, doctor, flash_attn, hub, inspect, report, selftest, tune

    parser = argparse.ArgumentParser(
        prog="xeflash", description="FlashAttention for Intel GPUs and the SYCL CPU device."
    )
    parser.add_argument("--version", action="version", version=f"xeflash {package_version('xeflash') or '?'}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command in (doctor, selftest, report, bench, tune, compile_command, inspect, hub, flash_attn, comfyui):
        command.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    try:
        arguments = build_parser().parse_args(argv)
        code: int = arguments.run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has gone
        sys.stderr.close()
        return 1
    except OSError as error:
        if error.errno != errno.ENOSPC or error.filename is not None:
            raise
        print(f"xeflash: the output could not be written: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # takes what Python still holds
        return 1
    except KeyboardInterrupt:  # whatever was imported or done
        return 130
    return code
