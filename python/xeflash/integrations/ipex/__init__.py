"""The attention calls of Intel Extension for PyTorch (IPEX), which is archived, by xeflash; IPEX is not imported.

For code written for ``torch.xpu.IpexSDP``, ``torch.xpu.IpexSDP_Index`` and ``ipex.llm.modules``: the same names,
arguments and results, on CPU and XPU tensors:

>>> import torch
>>> from xeflash.integrations import ipex
>>> q = torch.ones(1, 8, 5, 64)  # batch, heads, sequence, head dim
>>> ipex.IpexSDP(q, q, q, alpha=64**-0.5, is_causal=True).shape
torch.Size([1, 8, 5, 64])

IPEX's last releases (2.8 for CPU, 2.8.10 and 2.9.10 for XPU) differ in places; here each is accepted on every device:
what comes first after ``alibi_slopes``, or in its place, says by its type whose order of arguments it is. Two methods
of PagedAttention have caches of another shape on XPU, as they had in IPEX.

What IPEX's kernels took and did not use is refused here: a head mask, ``beta`` other than 1, attention weights.
"""

from xeflash.integrations.ipex.indirect import IndirectAccessKVCacheAttention
from xeflash.integrations.ipex.paged import PagedAttention
from xeflash.integrations.ipex.sdp import IpexSDP
from xeflash.integrations.ipex.sdp_index import IpexSDP_Index
from xeflash.integrations.ipex.varlen import VarlenAttention

__all__ = ["IndirectAccessKVCacheAttention", "IpexSDP", "IpexSDP_Index", "PagedAttention", "VarlenAttention"]
