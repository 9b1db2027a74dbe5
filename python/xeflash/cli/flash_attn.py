"""`xeflash flash-attn`: the module `flash_attn` for programs that import it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any


def add_parser(commands: Any) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "flash-attn",
        help="install or remove a module flash_attn for programs that import it",
        description="Programs that `import flash_attn` get xeflash's functions once it is installed. It is a package "
        "of a few lines with metadata of its own, which imports the xeflash that is installed. It never takes the "
        "place of a flash_attn that somebody else installed.",
    )
    parser.add_argument("action", choices=("install", "remove", "status"))
    parser.add_argument(
        "--target", metavar="DIR", type=Path, help="a folder of packages; default: that of this Python (site-packages)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Performs the action; returns 1 for status if flash_attn is not xeflash's, or not whole."""
    from xeflash.integrations import _flash_attn_package as package

    try:
        if arguments.action == "install":
            print(f"installed flash_attn {package.VERSION} in {package.install(arguments.target)}")
        elif arguments.action == "remove":
            place = package.remove(arguments.target)
            kept = sorted(file.name for file in place.iterdir()) if place and place.is_dir() else []
            of_others = f", but for what is not xeflash's: {', '.join(kept)}" if kept else ""
            print(f"removed {place}{of_others}" if place else "there is no flash_attn")
        else:
            found = package.state(arguments.target)
            whose = "xeflash's" if found.ours else "not xeflash's"
            print(
                f"flash_attn {found.version} in {found.place}, {whose}" if found.version else "there is no flash_attn"
            )
            if found.ours and not found.whole:
                where = f" --target {arguments.target}" if arguments.target else ""
                print(f"parts of it are missing; run: xeflash flash-attn install{where}")
            return 0 if found.whole else 1
    except OSError as error:
        print(f"xeflash flash-attn {arguments.action}: {error}", file=sys.stderr)
        return 2
    return 0
