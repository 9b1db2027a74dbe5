"""Starts the ranks of a benchmark on this machine, as torchrun does, and tells which rank failed and why."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable
from typing import Any

SECONDS_TO_END = 10  # for ranks that are asked to end; then they are killed


def launch(work: Callable[..., int], arguments: tuple[Any, ...], ranks: int) -> int:
    """Returns the largest code that `work(*arguments)` gave on any rank; 130 after an interrupt.

    Raises RuntimeError with the rank that failed first, and its error; the others are ended.
    """
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    for name in list(logging.root.manager.loggerDict):  # they tell at length what we tell below
        if name.startswith(("torch.distributed.elastic", "torch.multiprocessing")):
            logging.getLogger(name).setLevel(logging.CRITICAL)
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        shutdown_timeout=SECONDS_TO_END,
    )
    try:
        codes = elastic_launch(config, work)(*arguments)
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        raise RuntimeError(f"bench: rank {rank} failed: {_words(failure)}") from None
    except (SignalException, KeyboardInterrupt):
        return 130
    return max(int(code) for code in codes.values())


def _words(failure: Any) -> str:
    """Returns the exception of a rank, or the signal that ended it, in words."""
    told = failure.message
    text = str(told.get("message", "") if isinstance(told, dict) else told).strip()
    return text or f"exit code {failure.exitcode}"
