"""A folder that Hugging Face's package ``kernels`` loads in the place of kernels from the Hub.

``LOCAL_KERNELS`` names a folder for a repository. Transformers, diffusers and others that ask ``kernels`` for
``kernels-community/flash-attn2`` or ``flash-attn3`` get xeflash's functions then, and are not changed for it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

_HEADER = '"""By xeflash: `xeflash hub` wrote it."""\n\n'


class _Kernel(NamedTuple):
    version: int  # the newest that programs ask for
    repositories: tuple[str, ...]
    source: str


_KERNELS = {
    "flash-attn2": _Kernel(
        4,
        ("kernels-community/flash-attn2",),
        "from xeflash.integrations.flash_attn import *  # noqa: F403\n"
        "from xeflash.integrations.flash_attn import bert_padding, flash_attn_interface  # noqa: F401\n",
    ),
    "flash-attn3": _Kernel(
        1,
        ("kernels-community/flash-attn3", "kernels-community/vllm-flash-attn3"),
        "from xeflash.integrations.flash_attn import flash_attn_3 as flash_attn_interface  # noqa: F401\n"
        "from xeflash.integrations.flash_attn.flash_attn_3 import *  # noqa: F403\n",
    ),
}
# The builds, by the device that torch was built for. Releases of `kernels` that do not know these take the last.
_BUILDS = {"torch-cpu": "cpu", "torch-xpu": "xpu", "torch-universal": "xpu"}


def write(folder: Path) -> dict[str, Path]:
    """Writes a kernel per name into `folder`; returns the folder for each repository."""
    folder = folder.resolve()
    if ":" in str(folder):
        raise ValueError(
            f"hub: the folder must have no ':' in its path, which separates the folders of LOCAL_KERNELS, got {folder}"
        )
    for name in _KERNELS:
        if (folder / name).exists() and not _is_ours(folder / name):
            raise FileExistsError(f"hub: {folder / name} must be written by xeflash, or not exist, got another's")
    places: dict[str, Path] = {}
    for name, kernel in _KERNELS.items():
        for build, device in _BUILDS.items():
            place = folder / name / "build" / build
            place.mkdir(parents=True, exist_ok=True)
            (place / "__init__.py").write_text(_HEADER + kernel.source)
            (place / "metadata.json").write_text(json.dumps(_metadata(name, kernel.version, device), indent=1) + "\n")
        places |= dict.fromkeys(kernel.repositories, folder / name)
    return places


def local_kernels(places: dict[str, Path]) -> str:
    """Returns the value of the environment variable LOCAL_KERNELS."""
    return ":".join(f"{repository}={place}" for repository, place in places.items())


def _metadata(name: str, version: int, device: str) -> dict[str, object]:
    return {
        "id": f"xeflash_{name.replace('-', '_')}_{device}",
        "name": name,
        "version": version,
        "license": "Apache-2.0",
        "python-depends": [],
        "backend": {"type": device},
    }


def _is_ours(place: Path) -> bool:
    found = list(place.glob("build/*/metadata.json"))
    return bool(found) and all('"xeflash_' in file.read_text() for file in found)
