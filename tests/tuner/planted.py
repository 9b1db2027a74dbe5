"""A device that is not there, and a small case."""

from importlib.metadata import version

from xeflash.bench.cases import Case
from xeflash.tune.tuned import DeviceKey, Tuning, tables_hash

TUNING = Tuning(DeviceKey("cpu-avx512", "none", 4, 0), "a CPU", "1.0", version("xeflash"), tables_hash())
TINY = Case("prefill", "fp32", 1, 2, 2, 64, 23, 23, causal=True)
