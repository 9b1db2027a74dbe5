"""The tables of tile sizes: no row is dead, and perf/sweep.py tries each of the forward's and of linear.

A kernel's candidates are few and different, none of them spills, and no line of spills.csv is dead.
"""

import itertools
from pathlib import Path

import pytest
from xeflash.call.score_mod import ScoreMod
from xeflash.tune import cpu, products, spills, xe, xe_shares
from xeflash.tune.desc import Desc, SoftmaxDesc
from xeflash.tune.table import candidates, pick, pick_of_tables

DTYPES, DIMS = ("fp32", "fp16", "bf16"), (48, 64, 104, 112, 128, 256, 512, 576)
CPUS = ("cpu-generic", "cpu-avx512", "cpu-avx512-bf16", "cpu-amx-bf16")
TYPES = ("float32", "float16", "bfloat16")
ACCESSES = ("elements", "dwords", "block2d")
TWO = ["cpu", "xe"]


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
    dead = [row for number, row in enumerate(tables[algorithm], 1) if number not in served]
    assert not dead, "rows above these take all that they fit (move them up), or no head dim of DIMS fits them (add it)"


@pytest.mark.parametrize("device", [*CPUS, *xe.ARCHITECTURES])
def test_a_kernel_has_few_candidates_that_differ_and_do_not_spill(device, sweep):
    problems = sweep.KINDS["flash_fwd"].problems
    descs = [x for name in ("flash_fwd", "flash_decode") for x in problems(device, name, DTYPES, DIMS)]
    descs += [
        x
        for name in ("flash_bwd_dq", "flash_bwd_dkv", "flash_bwd_bias")
        for x in gradient_descs(device, name)
        if x.head_dim <= 256
    ]
    several = 0
    for desc in descs:
        found = candidates(desc)
        configs = [pick(desc, blocks) for blocks in found]
        assert configs[0] == pick_of_tables(desc) and 1 <= len(found) == len(set(configs)) <= 6, desc
        assert not any(spills.spill(desc, blocks) for blocks in found), desc
        assert desc.algorithm not in xe.BACKWARD or len({keys for _, keys in found}) == 1, desc
        several += len(found) > 1
    assert several > len(descs) / 10


@pytest.fixture
def measuring(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "perf"))
    from counting import spills as measuring

    return measuring


@pytest.mark.parametrize("line", spills.lines(), ids=lambda line: " ".join(filter(None, line)))
def test_each_line_strikes_out_a_tile_of_its_example(line, measuring, monkeypatch):
    desc = measuring.example_of(line, line.example)
    assert int(line.spilled) > 0 and line.is_of(desc)
    struck = candidates(desc)
    others = [x for x in spills.lines() if x != line]
    monkeypatch.setattr(xe, "spill", lambda desc, tile: any(x.tile == tile and x.is_of(desc) for x in others))
    assert candidates(desc) != struck, "without it nothing changes"


@pytest.mark.wide
@pytest.mark.parametrize("device", xe.ARCHITECTURES)
def test_the_choice_for_a_product_is_counted(device, sweep, ocloc):
    desc = next(iter(sweep.served(device, "linear", ("bf16",), ()).values()))
    kind = sweep.KINDS["linear"]
    found = sweep.counted(kind, desc, kind.chosen_of(desc))
    assert not isinstance(found, str), found
    assert found["instructions / byte"] > 0 and found["scratch"] == 0


def accesses(arch):
    return ("",) if arch.startswith("cpu-") else ACCESSES[:2] if arch == "dg2" else ACCESSES


def gradient_descs(arch, algorithm):
    """What calls ask for of the backward pass, from small to large."""
    changes = ({}, {"hooks": ("SoftCap",)}, {"score_mod": ScoreMod("s", ())}, {"dropout": True}, {"mask": "Documents"})
    for dtype, dim, rows, access, change in itertools.product(TYPES, DIMS, (16, 32, 64, 128), accesses(arch), changes):
        yield Desc(algorithm, arch, dtype, dim, dim, rows, access=access, **change)


@pytest.mark.parametrize("algorithm", [name for name, table in cpu.TABLES.items() if table is cpu.FLASH_BWD])
@pytest.mark.parametrize("tune, devices", [(cpu, CPUS), (xe, xe.ARCHITECTURES)], ids=TWO)
def test_each_row_of_the_backward_pass_serves_a_device(tune, devices, algorithm):
    if algorithm not in tune.TABLES:
        pytest.skip("GPUs have no such kernel")
    found = {id(tune.row_of(desc)) for device in devices for desc in gradient_descs(device, algorithm)}
    assert found == {id(row) for row in tune.TABLES[algorithm]}


@pytest.mark.parametrize("arch", xe.ARCHITECTURES)
def test_the_threads_of_a_query_own_the_columns_of_v_and_no_others(arch):
    """Rows are read by messages that know no width, but for block messages."""
    sizes = itertools.product(
        TYPES, range(8, xe_shares.MAX_HEAD_DIM + 8, 8), (1, 5, 8, 16), ACCESSES[:2], (False, True)
    )
    for dtype, dim, heads, access, turns in sizes:
        if not (turns and dim > xe_shares.SCHEDULE.turn_head_dim):
            desc = Desc("flash_decode", arch, dtype, dim, dim, heads, split_keys=turns, access=access)
            config = pick(desc)
            assert config.block_v * config.parts == dim, desc


def product_descs(algorithm, arch):
    sizes = itertools.product(TYPES, (8, 16, 32, 64), (4, 5, 6, 12, 17), (128, 256), accesses(arch))
    for dtype, rows, columns, inputs, access in sizes:
        yield SoftmaxDesc(algorithm, arch, dtype, rows, columns, inputs, more_inputs=True, access=access)


@pytest.mark.parametrize("table", ["MATMUL_SOFTMAX", "HEADS"])
def test_each_row_of_other_products_serves_a_device(table, monkeypatch):
    """A row is found by leaving it out: another choice, or none, is made."""
    algorithms = ("matmul_softmax",) if table == "MATMUL_SOFTMAX" else sorted({row[1] for row in products.HEADS})
    pick = products.pick_softmax if table == "MATMUL_SOFTMAX" else products.pick_head
    rows = getattr(products, table)
    descs = [x for name in algorithms for arch in (*CPUS, *xe.ARCHITECTURES) for x in product_descs(name, arch)]
    chosen = [pick(desc) for desc in descs]
    for i, row in enumerate(rows):
        monkeypatch.setattr(products, table, rows[:i] + rows[i + 1 :])
        assert any(_pick_or_none(pick, desc) != config for desc, config in zip(descs, chosen, strict=True)), row


def _pick_or_none(pick, desc):
    try:
        return pick(desc)
    except NotImplementedError:
        return None
