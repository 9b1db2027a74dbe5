"""What torch.compile leaves out of its graphs. It is imported while it compiles, as this import takes seconds else."""

from __future__ import annotations

from typing import Any

import torch

from xeflash.call.call import Call
from xeflash.distributed import running


@torch.compiler.disable  # type: ignore[untyped-decorator]
def run(call: Call) -> Any:
    """A call."""
    return running.run(call)
