"""Programs over ranks that tests start."""

import subprocess
from collections.abc import Sequence
from typing import Any

AT_EXIT = "terminate called without an active exception"


def run_program(command: Sequence[str], **how: Any) -> "subprocess.CompletedProcess[str]":
    """Runs a program. torch 2.13 aborts about one of 20 over gloo while rank 0 exits, after its results: it runs again."""
    for _ in range(4):
        done = subprocess.run(command, capture_output=True, text=True, **how)
        if done.returncode == 0 or AT_EXIT not in done.stderr:
            break
    return done
