"""A sample of every algorithm on an Intel GPU: what is tried on each device and with each compiler.

`pytest --sim lnl tests/attention/test_sample.py`; the table of what was tried is in perf/xesim/README.md. With
`-m "long or not long"` every type and format.
"""

import pytest
import torch
import xeflash
from arrays import DTYPES, from_array, to_array
from caches import CacheCase
from caches import run as run_cache
from cases import Case, is_possible
from cases import run as run_case

pytest.importorskip("usm", reason="dpctl is not installed")

pytestmark = pytest.mark.gpu

# Forward and decode in blocks and at odd addresses, with and without a fused variant, appending to each kind of cache.
SHORT = {
    "forward": Case("bf16", 64, 64, rows=127, keys=300, heads="gqa2", window="causal", kind="gpu"),
    "append and decode": CacheCase("bf16", 64, 64, place="paged16", format="e4m3", lengths="70,9", new=2, heads="8/1",
                                   kind="gpu"),
}  # fmt: skip
LONG = {
    "forward fp16": Case("fp16", 128, 128, rows=63, keys=127, heads="mha", variant="softcap", kind="gpu"),
    "forward fp32": Case("fp32", 64, 64, rows=63, keys=127, heads="mha", variant="bias", window="left", entry="attention", kind="gpu"),
    "forward odd": Case("bf16", 80, 80, rows=63, keys=127, heads="mha", layout="odd", kind="gpu"),
    "forward alibi": Case("bf16", 96, 96, rows=63, keys=127, heads="mha", variant="alibi", sinks=True, kind="gpu"),
    "forward dropout": Case("bf16", 96, 96, rows=63, keys=127, heads="mha", layout="odd", variant="dropout",
                            entry="attention", kind="gpu"),
    "forward score_mod": Case("bf16", 64, 64, rows=63, keys=127, heads="one", variant="snippet", entry="attention", kind="gpu"),
    "forward few rows": Case("bf16", 128, 128, rows=5, keys=700, heads="one", kind="gpu"),
    "forward wide": Case("bf16", 576, 512, rows=63, keys=63, heads="one", kind="gpu"),
    "decode": Case("bf16", 128, 128, rows=1, keys=1000, heads="gqa4", kind="gpu"),
    "decode fp16": Case("fp16", 64, 64, rows=1, keys=255, heads="mha", variant="alibi", kind="gpu"),
    "decode fp32": Case("fp32", 128, 128, rows=1, keys=255, heads="mha", variant="softcap", kind="gpu"),
    "cache e5m2": CacheCase("fp16", 128, 128, place="paged16", format="e5m2", lengths="70,9", new=2, rows=5, kind="gpu"),
    "cache int8": CacheCase("bf16", 64, 64, format="int8.array", lengths="70,9", rows=1, kind="gpu"),
    "cache rotary": CacheCase("fp32", 64, 64, place="index", lengths="70,9", new=2, rotary="pairs", kind="gpu"),
    "cache beams": CacheCase("bf16", 64, 64, place="beams2", lengths="70,9", rows=1, heads="2/2", kind="gpu"),
}  # fmt: skip


def check(case):
    if isinstance(case, CacheCase):
        return run_cache(case)
    assert is_possible(case)
    return run_case(case)


@pytest.mark.parametrize("name", SHORT)
def test_sample(gpu, name):
    check(SHORT[name])


@pytest.mark.long
@pytest.mark.parametrize("name", LONG)
def test_long_sample(gpu, name):
    check(LONG[name])


@pytest.mark.parametrize("dtype", ["bf16", pytest.param("fp32", marks=pytest.mark.long)])
def test_merge_states(gpu, dtype):
    """Two halves of equal weight give their mean."""
    halves = [torch.full((1, 3, 2, 64), value, dtype=DTYPES[dtype]) for value in (1.0, 3.0)]
    lse = torch.zeros(1, 2, 3)
    out, merged = xeflash.merge_states(*(to_array(x, "gpu") for half in halves for x in (half, lse)))
    assert (from_array(out, "gpu") == 2).all()
    torch.testing.assert_close(from_array(merged, "gpu"), torch.full_like(lse, 2.0).log(), rtol=1e-6, atol=1e-6)
