"""`xeflash comfyui`: a node of ComfyUI that gives a model xeflash's attention."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

_NAME = "xeflash_attention.py"
_HEADER = '"""By xeflash: `xeflash comfyui` wrote it."""\n'
_SOURCE = f"""{_HEADER}
from xeflash.integrations.comfyui import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS, register

register()
"""


def add_parser(commands: Any) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "comfyui",
        help="write a node of ComfyUI",
        description=f"Write {_NAME} into ComfyUI's folder custom_nodes. It adds the node `xeflash attention`, which "
        "takes a model and gives it xeflash's attention, and registers the function under the name xeflash. It imports "
        "the xeflash that is installed in ComfyUI's Python, and stays right when that is updated.",
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="ComfyUI's folder, in which custom_nodes is")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the node into ComfyUI's folder."""
    file = arguments.folder / "custom_nodes" / _NAME
    try:
        if file.exists() and not file.read_text().startswith(_HEADER):
            raise FileExistsError(f"{file} must be written by xeflash, or not exist, got another's")
        file.write_text(_SOURCE)
    except OSError as error:
        print(f"xeflash comfyui: {error}", file=sys.stderr)
        return 2
    print(f"wrote {file}")
    return 0
