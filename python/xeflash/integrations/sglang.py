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
BACKEND = "xeflash.integrations.sglang_backend"


def register() -> None:
    """Adds the name to SGLang's choices, for draft models, too; the backend is imported when it is chosen."""
    choices = importlib.import_module("sglang.srt.arg_groups.choices")
    registry = importlib.import_module("sglang.srt.layers.attention.attention_registry")
    registry.register_attention_backend(NAME)(_make)
    if NAME in choices.ATTENTION_BACKEND_CHOICES:
        return
    choices.add_attention_backend_choices([NAME])
    hooks = importlib.import_module("sglang.srt.plugins.hook_registry")
    add, kinds = hooks.HookRegistry.register, hooks.HookType
    factory = "sglang.srt.speculative.draft_utils.DraftBackendFactory"
    add(f"{factory}._create_backend", _add_draft_backends, kinds.BEFORE)
    add("sglang.srt.arg_groups.speculative_hook._handle_eagle_family", _accept_trees, kinds.AROUND)


def _make(runner: Any) -> Any:
    """Makes the backend of one of SGLang's ModelRunners."""
    return importlib.import_module(BACKEND).XeflashAttnBackend(runner)


def _add_draft_backends(factory: Any, _phase: str, makers: dict[str, Any], _error: str, **said: Any) -> None:
    """Adds the name to those of which SGLang chooses a draft model's backend: one that guesses, or one that extends."""

    def make() -> tuple[str, Any]:
        runner = factory.draft_model_runner
        if not said.get("stamps_children"):  # SGLang stamps those that guess, which are one for each step
            return NAME, _make(runner)
        backend = importlib.import_module(BACKEND).XeflashDraftBackend
        return NAME, backend(runner, factory.topk, factory.speculative_num_steps)

    makers[NAME] = make


def _accept_trees(handle: Any, server_args: Any) -> None:
    """Accepts trees on pages, for which SGLang has a fixed list of backends: the last rule of those that it checks."""
    try:
        handle(server_args)
    except ValueError as error:
        if f"got attention_backend={NAME!r}" not in str(error):
            raise
