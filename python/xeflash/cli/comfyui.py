"""`xeflash comfyui`: a node of ComfyUI that gives a model xeflash's attention."""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

_NODE = "ComfyUI-xeflash"  # no name of a module: nodes that add custom_nodes to sys.path would hide the package
_WORKFLOW = Path(__file__).parents[1] / "integrations" / "text_to_image_with_xeflash.json"
_HEADER = '"""By xeflash: `xeflash comfyui` wrote it."""\n'
_SOURCE = f"""{_HEADER}
from xeflash.integrations.comfyui import NODE_CLASS_MAPPINGS, NODE_DISPLAY_NAME_MAPPINGS, register

register()
"""
_SECONDS = 10  # for a Python that does not answer
_FIND = "import importlib.util, sys; sys.exit(importlib.util.find_spec('xeflash') is None)"


def add_parser(commands: Any) -> None:
    """Adds the subcommand."""
    parser = commands.add_parser(
        "comfyui",
        help="write a node of ComfyUI",
        description=f"Write {_NODE} into ComfyUI's folder custom_nodes. It adds the node `xeflash attention`, which "
        "takes a model and gives it xeflash's attention, a template of a workflow with it, and the function xeflash "
        "among those that programs ask for by name. It imports the xeflash that is installed in ComfyUI's Python, and "
        "stays right when that is updated.",
    )
    parser.add_argument(
        "folder", metavar="DIR", type=Path, help="ComfyUI's folder, in which main.py and custom_nodes are"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Writes the node into ComfyUI's folder, and says what to do next."""
    folder = arguments.folder.resolve()
    node = folder / "custom_nodes" / _NODE
    file = node / "__init__.py"
    try:
        if not ((folder / "main.py").is_file() and node.parent.is_dir()):
            raise NotADirectoryError(f"DIR must be ComfyUI's folder (it has main.py and custom_nodes), got {folder}")
        if node.exists() and not (file.is_file() and file.read_text().startswith(_HEADER)):
            raise FileExistsError(f"{node} must be written by xeflash, or not exist, got another's")
        about_python, install = _about_python(folder)
        (node / "example_workflows").mkdir(parents=True, exist_ok=True)
        file.write_text(_SOURCE)
        shutil.copy(_WORKFLOW, node / "example_workflows")
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else error
        print(f"xeflash comfyui: {reason}", file=sys.stderr)
        return 2
    steps = (
        *install,
        "Restart ComfyUI.",
        f"""Open Templates > {_NODE} > {_WORKFLOW.stem}, and choose a checkpoint.
   In a workflow of your own: Add Node > model_patches > xeflash attention, between Load Checkpoint and KSampler.""",
        """Run it. ComfyUI's console says "xeflash attention serves ..." in the first step, which takes longer than
   later ones, as kernels are compiled, once.""",
    )
    numbered = "\n".join(f"{number}. {step}" for number, step in enumerate(steps, 1))
    print(f"wrote {node}\n{about_python}\nNext:\n{numbered}\nTo remove it: rm -r {shlex.quote(str(node))}")
    return 0


def _about_python(folder: Path) -> tuple[str, list[str]]:
    """Returns a sentence about the Python that runs ComfyUI, which needs xeflash, and the step that installs it."""
    for python in (folder / name / "bin" / "python" for name in ("venv", ".venv")):
        if python.exists():
            try:
                has = subprocess.run([python, "-I", "-c", _FIND], timeout=_SECONDS).returncode == 0
            except (OSError, subprocess.TimeoutExpired):
                return f"ComfyUI's Python needs xeflash, and does not tell whether it has it: {python}", []
            if has:
                return f"ComfyUI's Python has xeflash: {python}", []
            pip = f"{shlex.quote(str(python))} -m pip install xeflash (or the folder of a checkout)"
            return f"ComfyUI's Python has no xeflash: {python}", [f"Install it: {pip}"]
    return f"ComfyUI has to be started with a Python that has xeflash, as this has: {sys.executable}", []
