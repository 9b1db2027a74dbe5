"""A sample of every algorithm on an Intel GPU: what is tried on each device and with each compiler.

`pytest --sim lnl tests/attention/test_sample.py`; the table of what was tried is in perf/xesim/README.md. With
`-m "long or not long"` every type and format.
"""

import pytest
import torch
import xeflash
from arrays import DTYPES, from_array, to_array
from specs import cached, run
from xeflash.selftest.attention.spec import Spec, is_possible

pytest.importorskip("usm", reason="dpctl is not installed")

pytestmark = pytest.mark.gpu

# Forward and decode in blocks and at odd addresses, with and without a fused variant, appending to each kind of cache.
SHORT = {
    "forward": Spec("bf16", 64, 64, rows=127, keys=300, heads=(4, 2), window="causal", kind="gpu"),
    "append and decode": cached("bf16", 64, 64, place="paged16", format="e4m3", keys=(70, 9), new=2, heads=(8, 1),
                                   kind="gpu"),
}  # fmt: skip
LONG = {
    "forward fp16": Spec("fp16", 128, 128, rows=63, keys=127, heads=(2, 2), variant="softcap", kind="gpu"),
    "forward fp32": Spec("fp32", 64, 64, rows=63, keys=127, heads=(2, 2), variant="bias", window="50,-1", entry="attention", kind="gpu"),
    "forward odd": Spec("bf16", 80, 80, rows=63, keys=127, heads=(2, 2), layout="odd", kind="gpu"),
    "forward alibi": Spec("bf16", 96, 96, rows=63, keys=127, heads=(2, 2), variant="alibi", sinks=True, kind="gpu"),
    "forward dropout": Spec("bf16", 96, 96, rows=63, keys=127, heads=(2, 2), layout="odd", variant="dropout",
                            entry="attention", kind="gpu"),
    "forward score_mod": Spec("bf16", 64, 64, rows=63, keys=127, heads=(1, 1), variant="snippet", entry="attention", kind="gpu"),
    "forward few rows": Spec("bf16", 128, 128, rows=5, keys=700, heads=(1, 1), kind="gpu"),
    "forward wide": Spec("bf16", 576, 512, rows=63, keys=63, heads=(1, 1), kind="gpu"),
    "decode": Spec("bf16", 128, 128, rows=1, keys=1000, heads=(8, 2), kind="gpu"),
    "decode fp16": Spec("fp16", 64, 64, rows=1, keys=255, heads=(2, 2), variant="alibi", kind="gpu"),
    "decode fp32": Spec("fp32", 128, 128, rows=1, keys=255, heads=(2, 2), variant="softcap", kind="gpu"),
    "cache e5m2": cached("fp16", 128, 128, place="paged16", format="e5m2", keys=(70, 9), new=2, rows=5, kind="gpu"),
    "cache int8": cached("bf16", 64, 64, format="int8.array", keys=(70, 9), rows=1, kind="gpu"),
    "cache rotary": cached("fp32", 64, 64, place="index", keys=(70, 9), new=2, rotary="pairs", kind="gpu"),
    "cache beams": cached("bf16", 64, 64, place="beams2", keys=(70, 9), rows=1, heads=(2, 2), kind="gpu"),
}  # fmt: skip


def check(case):
    assert is_possible(case)
    run(case)


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
