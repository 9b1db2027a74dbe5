"""The tables of tile sizes: no row is dead, and perf/sweep.py tries each."""

from pathlib import Path

import pytest
from xeflash.tune import cpu, products, xe

DTYPES, DIMS = ("fp32", "fp16", "bf16"), (64, 104, 112, 128, 256, 512, 576)
CPUS = ("cpu-generic", "cpu-avx512", "cpu-avx512-bf16", "cpu-amx-bf16")


TABLES = {"cpu": (cpu.TABLES, CPUS), "xe": (xe.TABLES, xe.ARCHITECTURES)}
LINEAR = (products.TABLES, (*CPUS, *xe.ARCHITECTURES))
CASES = {
    f"{algorithm}-{name}": (algorithm, *TABLES[name]) for name in TABLES for algorithm in ("flash_fwd", "flash_decode")
}


@pytest.fixture
def sweep(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "perf"))
    import sweep

    return sweep


@pytest.mark.parametrize("algorithm, tables, devices", [*CASES.values(), ("linear", *LINEAR)], ids=[*CASES, "linear"])
def test_each_row_serves_a_device(algorithm, tables, devices, sweep):
    served = {row for device in devices for row in sweep.served(device, algorithm, DTYPES, DIMS)}
    assert served == set(range(1, len(tables[algorithm]) + 1))


@pytest.mark.wide
@pytest.mark.parametrize("device", xe.ARCHITECTURES)
def test_the_choice_for_a_product_is_counted(device, sweep, ocloc):
    desc = next(iter(sweep.served(device, "linear", ("bf16",), ()).values()))
    kind = sweep.KINDS["linear"]
    found = sweep.counted(kind, desc, kind.chosen_of(desc))
    assert not isinstance(found, str), found
    assert found["instructions / byte"] > 0 and found["scratch"] == 0
