"""The names of flash-attn's modules that are not here, and what to use in their place, for who imports one.

``importlib.util.find_spec`` finds none of them, and an import raises a ModuleNotFoundError, as it does for every module
that is not there. So programs that look for one, or try to import it, go on without.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from typing import Any

_INSTEAD = {
    "layers": "torch.nn has Conv2d, Linear and others, and of flash-attn's layers there is flash_attn.layers.rotary",
    "losses": "torch.nn.functional.cross_entropy takes logits, and xeflash.linear_cross_entropy does without them",
    "models": "Transformers has models, and xeflash.integrations.transformers is an attention for them",
    "modules": "torch.nn has layers, and flash_attn_func is the attention between them",
    "ops": "torch.nn.functional has rms_norm, layer_norm, linear, silu, gelu and cross_entropy, "
    "and flash_attn.layers.rotary rotates",
}


class Finder:
    """Finds nothing; the last of sys.meta_path."""

    @staticmethod
    def find_spec(name: str, *_how: Any) -> ModuleSpec | None:
        """Returns None; raises a ModuleNotFoundError that says more than Python's own if an import asks."""
        package, _, module = name.rpartition(".")
        module = "layers" if package == "flash_attn.layers" else module if package == "flash_attn" else ""
        if module in _INSTEAD:
            asks = sys._getframe(1).f_back  # beyond the function that goes through sys.meta_path
            if asks is not None and asks.f_code.co_name == "_find_and_load_unlocked":
                raise ModuleNotFoundError(f"xeflash has no {name}: {_INSTEAD[module]}", name=name)
        return None
