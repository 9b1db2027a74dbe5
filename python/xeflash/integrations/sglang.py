"""xeflash as an attention backend of SGLang, which finds it by itself: ``register`` is one of its general plugins.

    sglang serve --model-path MODEL --attention-backend xeflash --page-size 64

Pages have to be of a multiple of 16 keys; SGLang's default of 1 is refused. SGLANG_PLUGINS, a list of names, keeps
``xeflash`` out. The backend is ``xeflash.integrations.sglang_backend``; the guide's page on
serving tells which version has run it.
"""

from __future__ import annotations

import importlib
from typing import Any

NAME = "xeflash"


def register() -> None:
    """Adds the name to the choices of SGLang's arguments; the backend is imported when it is chosen."""
    choices = importlib.import_module("sglang.srt.arg_groups.choices")
    registry = importlib.import_module("sglang.srt.layers.attention.attention_registry")
    if NAME not in choices.ATTENTION_BACKEND_CHOICES:
        choices.add_attention_backend_choices([NAME])
    registry.register_attention_backend(NAME)(_make)


def _make(runner: Any) -> Any:
    """Makes the backend of one of SGLang's ModelRunners."""
    return importlib.import_module("xeflash.integrations.sglang_backend").XeflashAttnBackend(runner)
