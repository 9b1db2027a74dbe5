"""A backend of torch.distributed whose tensors may lie on xpu: it sends copies in host memory by gloo.

    dist.init_process_group(staged.register(), ...)

gloo itself moves host memory only, and a CPU build of torch has no other backend. What is received reaches its tensor
when the work is waited for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from datetime import timedelta

import torch
import torch.distributed as dist

NAME = "staged"


def register() -> str:
    """Makes torch know it; its name."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, Staged, devices=["cpu", "xpu"])
    return NAME


def copy_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [x.detach().to("cpu", copy=True, memory_format=torch.contiguous_format) for x in tensors]


def like(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [torch.empty(x.shape, dtype=x.dtype) for x in tensors]


class Delivery(dist.Work):
    """Work of gloo's, after which what has come is copied to where it belongs."""

    def __init__(self, works: Sequence[dist.Work], to: Iterable[torch.Tensor], of: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.works, self.to, self.of = list(works), list(to), list(of)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        for work in self.works:
            work.wait()
        for to, of in zip(self.to, self.of, strict=True):
            to.detach().copy_(of)
        self.to, self.of = [], []
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works)


class Staged(dist.ProcessGroup):
    """What xeflash.distributed, functional collectives and tests call."""

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self.gloo = dist.ProcessGroupGloo(store, rank, size, timeout)
        self.sending: list[tuple[dist.Work, list[torch.Tensor]]] = []  # what is sent lives until it has gone

    def getBackendName(self) -> str:
        return NAME

    # torch keeps the name with the backends of a group, and here there are none.
    def _set_group_name(self, name: str) -> None:
        self.__dict__["name_of_group"] = name

    @property
    def group_name(self) -> str:
        return self.__dict__["name_of_group"]

    def allgather(self, outs, inputs, opts=None):
        host = [like(out) for out in outs]
        work = self.gloo.allgather(host, copy_of(inputs), opts or dist.AllgatherOptions())
        return Delivery([work], itertools.chain(*outs), itertools.chain(*host))

    def all_gather_single(self, out, x, opts=None):
        return self.all_gather_single_coalesced([out], [x], opts)

    def all_gather_single_coalesced(self, outs, inputs, opts=None):
        host = like(outs)
        parts = [list(x.view(-1).chunk(self.size())) for x in host]
        flat = [x.view(-1) for x in copy_of(inputs)]
        works = [
            self.gloo.allgather([p], [x], opts or dist.AllgatherOptions()) for p, x in zip(parts, flat, strict=True)
        ]
        return Delivery(works, outs, host)

    def all_to_all_single(self, out, x, out_splits, splits, opts=None):
        (host,) = like([out])
        work = self.gloo.alltoall_base(host, *copy_of([x]), out_splits, splits, opts or dist.AllToAllOptions())
        return Delivery([work], [out], [host])

    def alltoall(self, outs, inputs, opts=None):
        """gloo has none of lists."""
        flat = torch.cat([x.reshape(-1) for x in copy_of(inputs)])
        host = torch.empty(sum(x.numel() for x in outs), dtype=flat.dtype)
        out_splits, splits = ([x.numel() for x in tensors] for tensors in (outs, inputs))
        work = self.gloo.alltoall_base(host, flat, out_splits, splits, opts or dist.AllToAllOptions())
        parts = [part.view(x.shape) for part, x in zip(host.split(out_splits), outs, strict=True)]
        return Delivery([work], outs, parts)

    def allreduce(self, tensors, opts=None):
        host = copy_of(tensors)
        return Delivery([self.gloo.allreduce(host, opts or dist.AllreduceOptions())], tensors, host)

    def broadcast(self, tensors, opts=None):
        host = copy_of(tensors)
        return Delivery([self.gloo.broadcast(host, opts or dist.BroadcastOptions())], tensors, host)

    def reduce_scatter(self, outs, inputs, opts=None):
        host = like(outs)
        work = self.gloo.reduce_scatter(host, [copy_of(x) for x in inputs], opts or dist.ReduceScatterOptions())
        return Delivery([work], outs, host)

    def reduce_scatter_single(self, out, x, opts=None):
        parts = list(x.view(self.size(), -1))
        return self.reduce_scatter([out.view(-1)], [parts], opts)

    def reduce_scatter_single_coalesced(self, outs, inputs, opts=None):
        works = [self.reduce_scatter_single(out, x, opts) for out, x in zip(outs, inputs, strict=True)]
        return Delivery(works, [], [])

    def send(self, tensors, to, tag=0):
        host = copy_of(tensors)
        self.sending = [(work, x) for work, x in self.sending if not work.is_completed()]
        work = self.gloo.send(host, to, tag)
        self.sending.append((work, host))
        return work

    def recv(self, tensors, of, tag=0):
        host = like(tensors)
        return Delivery([self.gloo.recv(host, of, tag)], tensors, host)

    def barrier(self, opts=None):
        return self.gloo.barrier(opts or dist.BarrierOptions())

    # What torch called them before 2.13.
    _allgather_base, allgather_into_tensor_coalesced = all_gather_single, all_gather_single_coalesced
    alltoall_base = all_to_all_single
    _reduce_scatter_base, reduce_scatter_tensor_coalesced = reduce_scatter_single, reduce_scatter_single_coalesced
