"""The tables of tile sizes: no row is dead, and perf/sweep.py tries each."""

from pathlib import Path

import pytest
from xeflash.tune import cpu, xe

DTYPES, DIMS = ("fp32", "fp16", "bf16"), (64, 104, 112, 128, 256, 512, 576)
CPUS = ("cpu-generic", "cpu-avx512", "cpu-avx512-bf16", "cpu-amx-bf16")


@pytest.mark.parametrize("algorithm", ["flash_fwd", "flash_decode"])
@pytest.mark.parametrize("tables, devices", [(cpu.TABLES, CPUS), (xe.TABLES, xe.ARCHITECTURES)], ids=["cpu", "xe"])
def test_each_row_serves_a_device(tables, devices, algorithm, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "perf"))
    import sweep

    served = {row for device in devices for row in sweep.served(device, algorithm, DTYPES, DIMS)}
    dead = [row for number, row in enumerate(tables[algorithm], 1) if number not in served]
    assert not dead, "rows above these take all that they fit (move them up), or no head dim of DIMS fits them (add it)"
