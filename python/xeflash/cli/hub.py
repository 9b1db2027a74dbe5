"""`xeflash hub`: a folder that Hugging Face's package `kernels` loads in the place of kernels from the Hub."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "hub",
        help="write kernels for Hugging Face's package `kernels`",
        description="Write a folder in the layout of Hugging Face's package `kernels`, with the functions of "
        "kernels-community/flash-attn2 and flash-attn3, and print the line that has programs load them from there: "
        "Transformers' flash_attention_2, diffusers' flash_hub and others then call xeflash. The folder imports the "
        "xeflash that is installed, and stays right when that is updated.",
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="the folder; it is made if it is not there")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the folder, and prints the line for a shell."""
    from xeflash.integrations import kernel_folder

    try:
        places = kernel_folder.write(arguments.folder)
    except (OSError, ValueError) as error:
        print(f"xeflash {error}", file=sys.stderr)
        return 2
    print(f"export LOCAL_KERNELS='{kernel_folder.local_kernels(places)}'")
    return 0
