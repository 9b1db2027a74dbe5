"""Ranks that have a GPU each: programs that run what a test gives them.

    def attend(group, device, rows): ...  # of a module, as pickle sends its name

    run(attend, 64)  # what each of two ranks returned; an AssertionError if one failed

On simulated GPUs the group's backend is `staged`, on cards XCCL. A rank that a fault was found in has failed.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parents[1]
WORLD, SECONDS = 2, 240


def run(function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What function(group, device, *arguments) returned in each rank."""
    with tempfile.TemporaryDirectory(prefix="gpu_ranks") as folder:
        (Path(folder) / "job").write_bytes(pickle.dumps((function, arguments)))
        paths = [str(TESTS / "torch_xpu" / "startup"), *sys.path]  # the first gives torch the simulated GPUs
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        logs = [Path(folder) / f"log{rank}" for rank in range(WORLD)]
        processes = []
        for rank, log in enumerate(logs):
            with log.open("w") as said:
                command = [sys.executable, __file__, str(rank), folder]
                processes.append(subprocess.Popen(command, env=environment, stdout=said, stderr=subprocess.STDOUT))
        try:
            end = time.monotonic() + SECONDS
            for process in processes:
                process.wait(max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            pass
        finally:
            for process in processes:
                process.kill()
                process.wait()
        bad = [f"rank {i} ended with {p.returncode}\n{logs[i].read_text()[-4000:]}" for i, p in enumerate(processes)
               if p.returncode]  # fmt: skip
        assert not bad, "\n".join(bad)
        return [pickle.loads((Path(folder) / f"answer{rank}").read_bytes()) for rank in range(WORLD)]


def main(rank: int, folder: Path) -> None:
    """As a rank."""
    import staged
    import torch
    import torch.distributed as dist
    import torch_xpu
    import xeflash
    from xeflash import sim

    assert xeflash.attention  # loads the extension
    device = torch.device("xpu", rank)
    torch.xpu.set_device(device)
    torch.manual_seed(0)
    backend = staged.register() if torch_xpu.installed() else "cpu:gloo,xpu:xccl"
    store = dist.FileStore(str(folder / "store"), WORLD)
    dist.init_process_group(backend, store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=SECONDS))
    function, arguments = pickle.loads((folder / "job").read_bytes())
    answer = function(None, device, *arguments)
    torch.xpu.synchronize()
    if sim.enabled():
        assert not sim.last_fault(), sim.last_fault()
    (folder / f"answer{rank}").write_bytes(pickle.dumps(answer))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
