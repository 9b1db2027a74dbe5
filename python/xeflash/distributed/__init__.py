"""Attention over the ranks of a torch.distributed group."""

from xeflash.distributed.agree import check_calls
from xeflash.distributed.check import TransportCheck, check_transport
from xeflash.distributed.cost import Cost, cost, cost_table
from xeflash.distributed.decode import context_parallel_with_kvcache
from xeflash.distributed.fill import fill_sharded_cache
from xeflash.distributed.functions import context_parallel_attn_func, context_parallel_attn_varlen_func
from xeflash.distributed.owners import local_lengths, local_room
from xeflash.distributed.shards import positions, shard, unshard
from xeflash.distributed.transport import register_transport, use_transport

__all__ = [
    "Cost",
    "TransportCheck",
    "check_calls",
    "check_transport",
    "context_parallel_attn_func",
    "context_parallel_attn_varlen_func",
    "context_parallel_with_kvcache",
    "cost",
    "cost_table",
    "fill_sharded_cache",
    "local_lengths",
    "local_room",
    "positions",
    "register_transport",
    "shard",
    "unshard",
    "use_transport",
]
