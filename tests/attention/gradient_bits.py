"""Prints digests of gradients, on the CPU of one pass and of two kernels: `python gradient_bits.py [DEVICE]`.

LAST_TILES=1 in the environment gives kernels of gradients the last of their candidates.
"""

import functools
import hashlib
import os
import sys

from xeflash import sim

device = "cpu"
if len(sys.argv) > 1:
    import torch_xpu

    sim.enable(sys.argv[1])
    torch_xpu.install()
    device = "xpu"

import torch  # noqa: E402
import xeflash  # noqa: E402
from xeflash.tune import cpu, xe  # noqa: E402


def last_of(desc, candidates):
    found = candidates(desc)
    return found[-1:] if desc.algorithm in xe.BACKWARD else found


if "LAST_TILES" in os.environ:
    for table in (cpu, xe):
        table.candidates = functools.partial(last_of, candidates=table.candidates)

torch.manual_seed(0)
cores = os.sysconf("SC_NPROCESSORS_CONF")
for batch, rows in [(1, 70), (cores, 133)] if device == "cpu" else [(1, 133)]:
    q, k, v = (torch.randn(batch, heads, rows, 64) for heads in (2, 1, 1))
    bias = torch.randn(rows, rows)
    given = [x.to(device).requires_grad_() for x in (q, k, v, bias)]
    out = xeflash.attention(*given, is_causal=True, enable_gqa=True)
    # torch.autograd.grad would leave results to a thread of torch's, which must not let go of them while Python ends.
    out.backward(torch.ones_like(out))
    print([hashlib.sha256(x.grad.cpu().numpy().tobytes()).hexdigest()[:8] for x in given])
