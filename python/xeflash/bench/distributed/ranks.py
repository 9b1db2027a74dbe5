"""A process as one rank: its device, its group, and the measurements that it shares with the others."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor


@dataclass(frozen=True)
class Rank:
    """Number, how many there are, and the torch device of this one."""

    number: int
    world: int
    device: str

    @property
    def first(self) -> bool:
        """Returns whether this is rank 0, which shows and writes."""
        return self.number == 0

    def gathered(self, values: Tensor) -> Tensor:
        """Returns (ranks, ...): float64 values of every rank."""
        mine = values.to(torch.float64).to(self.device)
        parts = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(parts, mine)
        return torch.stack(parts).cpu()

    def told(self, values: list[float]) -> list[float]:
        """Returns the values of rank 0."""
        mine = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.broadcast(mine, 0)
        return [float(value) for value in mine.cpu()]


def join(device: str) -> Rank:
    """Makes the default group of the processes that torchrun has started; ends with ``leave``."""
    number, local = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    if device.startswith("xpu"):
        count = torch.xpu.device_count()
        if local >= count:
            raise ValueError(
                f"bench: --device xpu needs a device for each rank of a machine, got {count} for {local + 1}"
            )
        torch.xpu.set_device(local)
        device = f"xpu:{local}"
        dist.init_process_group("xpu:xccl,cpu:gloo", device_id=torch.device(device))
    else:
        dist.init_process_group("gloo")
    return Rank(number, dist.get_world_size(), device)


def leave() -> None:
    """Ends the group."""
    if dist.is_initialized():
        dist.destroy_process_group()
