"""Calls that torch.compile leaves out of its graphs.

This module is imported only while torch.compile runs, as its import takes seconds otherwise.
"""

from __future__ import annotations

from typing import Any

import torch

from xeflash.call.call import Call
from xeflash.distributed import running


@torch.compiler.disable  # type: ignore[untyped-decorator]
def run(call: Call) -> Any:
    """Runs a call that torch.compile does not trace."""
    return running.run(call)
