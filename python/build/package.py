"""Imports of the package's modules that need nothing but Python; the package itself would look for the extension."""

import sys
import types
from pathlib import Path


def stand_in(source: Path) -> None:
    """Makes `xeflash` a package of this checkout whose own code does not run."""
    for name in ("xeflash", "xeflash.jit"):
        package = types.ModuleType(name)
        package.__path__ = [str(source / "python" / name.replace(".", "/"))]
        sys.modules[name] = package
