"""Processes that are the ranks of a gloo group on this machine, and run what a test gives them.

    def attend(group, rows): ...              # of a module, as pickle sends its name; group None: all processes

    run(attend, 64, world=3)                  # what each rank returned; an AssertionError if one raised
    outcomes(attend, 64, world=3)             # the same, with a Raised or a Died in the place of what did not return
    with Ranks(2, seconds=4) as mine:         # processes of a test's own, whose group gives up after so long
        mine.outcomes(break_something)

The processes of ``run`` and ``outcomes`` are four, start once, and serve all tests of a pytest process; fewer ranks are a
group of some of them, which are not the first, so that a rank of the group is no rank of the world. torch is imported
once for all, by a server that they are forked from. One that died, or did not answer, is replaced with the others.
"""

from __future__ import annotations

import contextlib
import faulthandler
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

MEMBERS = {1: (2,), 2: (1, 3), 3: (0, 2, 3)}  # of the four, the ranks of smaller groups
MOST = 4


@dataclass(frozen=True)
class Raised:
    """What a rank raised."""

    kind: str  # the name of the exception's type
    text: str
    trace: str

    def __str__(self) -> str:
        return self.trace


@dataclass(frozen=True)
class Died:
    """A rank that ended (code: as the system tells it, negative for a signal), or was ended as it did not answer."""

    code: int | None
    late: bool = False


class Ranks:
    """Processes and their group."""

    def __init__(
        self,
        world: int,
        seconds: float = 60.0,
        members: dict[int, tuple[int, ...]] | None = None,
        patience: float | None = None,
    ) -> None:
        """The group gives up after `seconds`; ranks that have not answered after `patience` are ended."""
        self.world, self.members = world, members or {}
        self.patience = 2 * seconds + 60 if patience is None else patience
        self.folder = tempfile.TemporaryDirectory(prefix="ranks")
        self.whole = True  # whether all can be asked again
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "torch.distributed"])
        self.pipes, self.processes = [], []
        for rank in range(world):
            ours, theirs = context.Pipe()
            store = str(Path(self.folder.name) / "store")
            process = context.Process(
                target=_serve, args=(theirs, store, rank, world, seconds, self.members), daemon=True
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the processes."""
        for process in self.processes:
            process.kill()
            process.join()
        for pipe in self.pipes:
            pipe.close()
        self.folder.cleanup()

    def outcomes(self, function: Callable[..., Any], *arguments: Any, world: int = 0) -> list[Any]:
        """What function(group, *arguments) gives in each rank of a group of `world` (0: all) processes."""
        world = world or self.world
        chosen = range(self.world) if world == self.world else self.members[world]
        for rank in chosen:
            with contextlib.suppress(BrokenPipeError):
                self.pipes[rank].send_bytes(pickle.dumps((function, arguments, world)))
        found: dict[int, Any] = {}
        waiting, end = set(chosen), time.monotonic() + self.patience
        while waiting:
            ready = wait([self.pipes[rank] for rank in waiting], max(0.0, end - time.monotonic()))
            for rank in [r for r in waiting if self.pipes[r] in ready] or sorted(waiting):
                found[rank] = self._answer(rank, bool(ready))
                waiting.remove(rank)
        return [found[rank] for rank in chosen]

    def _answer(self, rank: int, is_there: bool) -> Any:
        if is_there:
            try:
                answer = pickle.loads(self.pipes[rank].recv_bytes())
            except (EOFError, ConnectionResetError):
                self.processes[rank].join()
            else:
                # Of what is refused before anything is sent, the group knows nothing.
                refused = ("ValueError", "TypeError", "NotImplementedError", "AssertionError")
                self.whole &= not (isinstance(answer, Raised) and answer.kind not in refused)
                return answer
        self.whole = False
        self.processes[rank].kill()
        self.processes[rank].join()
        return Died(self.processes[rank].exitcode, late=not is_there)

    def run(self, function: Callable[..., Any], *arguments: Any, world: int = 0) -> list[Any]:
        """The same where all ranks return."""
        found = self.outcomes(function, *arguments, world=world)
        failed = [f"rank {i}: {x}" for i, x in enumerate(found) if isinstance(x, (Raised, Died))]
        assert not failed, "\n".join(failed)
        return found


def _serve(pipe: Any, store: str, rank: int, world: int, seconds: float, members: dict[int, tuple[int, ...]]) -> None:
    """A rank's life. It ends without the destructors of its group, whose other ranks may be gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()  # a rank that dies says where
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    limit = timedelta(seconds=seconds)
    dist.init_process_group(
        "gloo", store=dist.FileStore(store, world), rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    dist.distributed_c10d._set_pg_timeout(limit, dist.group.WORLD)
    groups = {n: dist.new_group(list(ranks), timeout=limit) for n, ranks in members.items()}
    groups[world] = None
    while True:
        try:
            function, arguments, asked = pickle.loads(pipe.recv_bytes())
        except (EOFError, OSError):
            os._exit(0)
        torch.manual_seed(0)
        try:
            answer = function(groups[asked], *arguments)
        except BaseException as error:
            answer = Raised(type(error).__name__, str(error), traceback.format_exc())
        pipe.send_bytes(pickle.dumps(answer))


_shared: Ranks | None = None


def shared() -> Ranks:
    """The four processes."""
    global _shared
    if _shared is None or not _shared.whole:
        if _shared is not None:
            _shared.close()
        _shared = Ranks(MOST, members=MEMBERS)
    return _shared


def run(function: Callable[..., Any], *arguments: Any, world: int = MOST) -> list[Any]:
    """What function(group, *arguments) returns in each of `world` ranks."""
    return shared().run(function, *arguments, world=world)


def outcomes(function: Callable[..., Any], *arguments: Any, world: int = MOST) -> list[Any]:
    """The same, with a Raised or a Died in the place of what did not return."""
    return shared().outcomes(function, *arguments, world=world)
