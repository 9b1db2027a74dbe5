"""Each checker finds a kernel that breaks its rule, says where, and is silent on the same kernel that keeps it.

That device memory is hidden from the host and commands are deferred belongs to the driver: test_driver.py.
"""

import ctypes
import re

import numpy as np
import pytest
from esimd import BLOCK2D_DEVICES, DEVICES, PREFIX, Fault, Kernels, checking, last_record
from toolbox import function


@pytest.fixture(scope="module", params=DEVICES)
def kernels(request) -> Kernels:
    return Kernels("checkers", request.param)


@pytest.fixture(scope="module", params=BLOCK2D_DEVICES)
def with_blocks(request) -> Kernels:
    return Kernels("checkers", request.param)


def check_report(text: str, kernel: str, *parts: str, op: str = "send") -> None:
    """Kernel, group, thread, address, bits and disassembly of an instruction, then what the parts match in turn."""
    place = rf"kernel {PREFIX}{kernel}, group \(\d+, 0, 0\), thread \d+, at 0x[0-9a-f]{{4}} "
    assert re.match(rf"{place}\[[0-9a-f]{{16}} [0-9a-f]{{16}}\] .*{op}", text), text
    assert re.search(".*".join(parts), text), text


def words(kernels: Kernels, count: int):
    return kernels.array(np.arange(count, dtype=np.uint32))


# ---- memory -------------------------------------------------------------------------------------


OUT_OF_BOUNDS = [
    ("copy_block", 4, r"read of \d+ bytes.*ends 16 bytes past the end of, the 64-byte device allocation"),
    ("copy_block", 16, r"read of \d+ bytes.*the address is right behind the end of the 64-byte"),
    ("copy_block", 20, r"read of \d+ bytes.*the address is 16 bytes past the end of the 64-byte"),
    ("copy_block", -4, r"read of \d+ bytes.*the address is 16 bytes before the start of the 64-byte"),
    ("store_block", 4, r"write of \d+ bytes.*ends 16 bytes past the end of, the 64-byte device allocation"),
    ("store_block", -4, r"write of \d+ bytes.*the address is 16 bytes before the start of the 64-byte"),
    ("gather_some", 1, r"read of 4 bytes by lane 15.*right behind the end of the 124-byte"),
    ("gather_some", -1, r"read of 4 bytes by lane 0.*4 bytes before the start of the 124-byte"),
]


@pytest.mark.parametrize("row", OUT_OF_BOUNDS, ids=[f"{kernel}-{shift}" for kernel, shift, _ in OUT_OF_BOUNDS])
def test_out_of_bounds(kernels, row):
    kernel, shift, what = row
    source, target = words(kernels, 31 if kernel == "gather_some" else 16), words(kernels, 16)
    kernels.run(kernel, source, target, np.int32(0))
    check_report(kernels.fault(kernel, source, target, np.int32(shift)), kernel, what)


def test_bounds_are_checked_with_all_other_checks_off(kernels):
    with checking("none"):
        text = kernels.fault("copy_block", words(kernels, 16), words(kernels, 16), np.int32(4))
    check_report(text, "copy_block", "past the end")


def test_use_after_free(kernels):
    source, target = words(kernels, 16), words(kernels, 16)
    address = np.uint64(source.address)
    kernels.run("copy_block", address, target, np.int32(0))
    del source
    text = kernels.fault("copy_block", address, target, np.int32(0))
    check_report(text, "copy_block", "the address is in the 64-byte device allocation at 0x[0-9a-f]+, which was freed")


def test_null_pointer(kernels):
    text = kernels.fault("copy_block", np.uint64(0), words(kernels, 16), np.int32(0))
    check_report(text, "copy_block", "it is a null pointer")


def test_double_free_and_foreign_free(kernels):
    release = function("xesim_release", ctypes.c_uint64)
    first, second = words(kernels, 16), words(kernels, 16)
    address, first.address = first.address, 0  # the array no longer frees it
    assert release(address) is None
    refusal = "freed address 0x[0-9a-f]+ is not the start of a live allocation: it is in the "
    assert re.match(refusal + "64-byte device allocation at 0x[0-9a-f]+, which was freed", release(address).decode())
    assert re.match(refusal + "live 64-byte device allocation", release(second.address + 4).decode())


# ---- values that nobody gave --------------------------------------------------------------------


def test_undefined_register_in_a_store(kernels):
    source, target = words(kernels, 16), words(kernels, 16)
    kernels.run("half_defined", source, target, np.int32(1))
    text = kernels.fault("half_defined", source, target, np.int32(0))
    check_report(text, "half_defined", r"src1 \(data\) reads r\d+ byte \d+, which was never given a value")
    with checking("none"):
        kernels.run("half_defined", source, target, np.int32(0))


def test_local_memory_that_nobody_wrote(kernels):
    target = words(kernels, 16)
    kernels.run("empty_slm", target, np.int32(1))
    text = kernels.fault("empty_slm", target, np.int32(0))
    check_report(text, "empty_slm", r"src1 \(data\) reads r\d+ byte 0, which was never given a value")
    with checking("none"):
        kernels.run("empty_slm", target, np.int32(0))


# ---- races --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_race_in_local_memory(kernels, seed):
    out = kernels.zeros(16, np.uint32)
    with checking(f"all,seed={seed}"):
        kernels.run("slm_exchange", out, np.int32(1), local=16)
        assert np.array_equal(out.view(), np.roll(np.arange(16), 1))
    # Alone: what is read too early was also never written.
    with checking(f"slm-races,interleave,seed={seed}"):
        text = kernels.fault("slm_exchange", out, np.int32(0), local=16)
    check_report(text, "slm_exchange", r"data race in SLM at 0x[0-9a-f]+: thread \d+ (reads|writes) what thread \d+")


@pytest.mark.parametrize("seed", range(3))
def test_race_in_global_memory_inside_a_group(kernels, seed):
    cells, out = words(kernels, 16), kernels.zeros(16, np.uint32)
    with checking(f"all,seed={seed}"):
        kernels.run("global_exchange", cells, out, np.int32(1), local=16)
        assert np.array_equal(out.view(), np.roll(np.arange(16), 1))
        text = kernels.fault("global_exchange", cells, out, np.int32(0), local=16)
    race = (
        r"data race in global memory at 0x[0-9a-f]+: thread \d+ of group 0 (reads|writes) what thread \d+ of the same"
    )
    check_report(text, "global_exchange", race, "no barrier orders them")
    with checking("none"):
        kernels.run("global_exchange", cells, out, np.int32(0), local=16)


def test_race_between_groups(kernels):
    cells, out = kernels.zeros(32, np.uint32), kernels.zeros(32, np.uint32)
    kernels.run("between_groups", cells, out, np.int32(0), groups=32)
    assert np.array_equal(out.view(), np.arange(32))
    text = kernels.fault("between_groups", cells, out, np.int32(1), groups=32)
    race = r"data race in global memory at 0x[0-9a-f]+: thread 0 of group \d+ (reads|writes) what thread 0 of group \d+"
    check_report(text, "between_groups", race, "nothing orders different groups")


def test_counting_without_atomics(kernels):
    cell = kernels.zeros(1, np.uint32)
    kernels.run("count", cell, np.int32(1), groups=50)
    assert cell.view()[0] == 50
    text = kernels.fault("count", cell, np.int32(0), groups=50)
    check_report(text, "count", "data race in global memory")


# ---- order --------------------------------------------------------------------------------------


def order(kernels: Kernels, check: str) -> list[int]:
    counter, out = kernels.zeros(1, np.uint32), kernels.zeros(16, np.uint32)
    with checking(check):
        kernels.run("tickets", counter, out, local=16)
    assert sorted(out.view()) == list(range(16))
    return list(out.view())


def test_threads_run_in_an_order_of_the_seed(kernels):
    orders = [order(kernels, f"all,seed={seed}") for seed in range(8)]
    assert len({tuple(found) for found in orders}) >= 6
    assert orders == [order(kernels, f"all,seed={seed}") for seed in range(8)]
    assert order(kernels, "none,seed=1") == order(kernels, "none,seed=2") == list(range(16))


# ---- arithmetic ---------------------------------------------------------------------------------

FUNCTIONS = {  # (function, largest error in units of the last place, largest absolute error)
    "exp2": (np.exp2, 4, 0),
    "inv": (lambda x: 1 / x, 1, 0),
    "sqrt": (np.sqrt, 4, 0),
    "rsqrt": (lambda x: 1 / np.sqrt(x), 4, 0),
    "log2": (np.log2, 4, 2.0**-21),
    "sin": (np.sin, 0, 0.0008),
    "cos": (np.cos, 0, 0.0008),
}


def functions(kernels: Kernels, x: np.ndarray, check: str) -> np.ndarray:
    out = kernels.zeros(7 * 16, np.float32)
    with checking(check):
        kernels.run("functions", kernels.array(x), out)
    return out.view().reshape(7, 16).copy()


def test_math_results_move_within_their_stated_error(kernels):
    x = np.random.default_rng(0).uniform(0.1, 9, 16).astype(np.float32)
    plain = functions(kernels, x, "none")
    moved = [functions(kernels, x, f"math,seed={seed}") for seed in range(6)]
    assert np.array_equal(moved[1], functions(kernels, x, "math,seed=1"))
    assert np.array_equal(plain, functions(kernels, x, "none,seed=1"))
    for row, (name, (exact, ulps, absolute)) in enumerate(FUNCTIONS.items()):
        want = exact(x.astype(float))
        ulp = np.spacing(abs(want).astype(np.float32)).astype(float)
        assert np.all(abs(plain[row] - want) <= 0.5 * ulp), name
        found = np.array([result[row] for result in moved])
        # log2 has a relative bound far from 1.
        bound = np.maximum(ulps * ulp, absolute * np.maximum(1, abs(want)))
        assert np.all(abs(found - want) <= bound), name
        if name != "inv":  # its one unit in the last place often rounds back
            assert np.any(found != plain[row]), name
        assert len({tuple(result) for result in found.tolist()}) > 1, name


def test_math_of_exact_arguments_stays_exact(kernels):
    x = np.ones(16, np.float32)
    moved = functions(kernels, x, "math,seed=3")
    assert np.all(moved[1:5] == np.array([1, 1, 1, 0])[:, None])


@pytest.mark.parametrize("device", DEVICES)
def test_dpas_models_differ_where_rounding_does(device):
    """2^24 + 1 - 2^24: one after the other the 1 is lost, in one exact sum it stays."""
    kernels = Kernels("multiply", device)
    a, b = np.zeros((8, 16), np.uint16), np.zeros((8, kernels.lanes, 2), np.uint16)
    one, large = 0x3F80, 0x4B80  # 1 and 2^24 as bf16
    a[:] = one
    b[0, :, 0], b[1, :, 0], b[2, :, 0] = large, one, large | 0x8000
    results = {}
    for model in ("exact", "stepwise"):
        c, d = (kernels.zeros(8 * kernels.lanes, np.float32) for _ in range(2))
        with checking(f"all,dpas={model}"):
            kernels.run("multiply", kernels.array(a), kernels.array(b), c, d)
        results[model] = set(d.view().tolist())
    assert results == {"exact": {1.0}, "stepwise": {0.0}}


def test_operands_of_the_wrong_width():
    """ocloc gives dg2 its dpas of 8 lanes whatever the operands are made for: half of the sums has no value."""
    wrong = Kernels("multiply", "dg2", lanes=16)
    values = wrong.array(np.zeros(512, np.float32))
    text = wrong.fault("product", values, values, values)
    check_report(text, "product", r"src1 \(data\) reads r\d+ byte 0, which was never given a value")


# ---- groups -------------------------------------------------------------------------------------


def test_deadlock_at_a_group_barrier(kernels):
    out = kernels.zeros(8, np.uint32)
    kernels.run("meet", out, np.int32(1), local=8)
    assert np.array_equal(out.view(), np.arange(8))
    if kernels.device == "bmg":  # whose barriers may leave out threads that have ended
        return
    text = kernels.fault("meet", out, np.int32(0), local=8)
    parts = r"deadlock: no thread of the group can go on", r"thread \d+ waits at barrier 0 \(7 of 8 producers"
    check_report(text, "meet", *parts, op="sync")


def test_deadlock_at_a_named_barrier(with_blocks):
    out = with_blocks.zeros(2, np.uint32)
    with_blocks.run("meet_named", out, np.int32(2), local=2)
    text = with_blocks.fault("meet_named", out, np.int32(3), local=2)
    check_report(text, "meet_named", "deadlock", r"thread \d waits at barrier 2 \(2 of 3 producers", op="sync")


def test_endless_loop(kernels, monkeypatch):
    monkeypatch.setenv("XEFLASH_SIM_MAX_INSTRUCTIONS", "100000")
    cell, out = kernels.array(np.ones(1, np.uint32)), kernels.zeros(1, np.uint32)
    kernels.run("forever", cell, out)
    cell.view()[0] = 0
    text = kernels.fault("forever", cell, out)
    check_report(text, "forever", "ran for more than 100000 instructions", op="")


@pytest.mark.parametrize("byte", [1024, 1 << 20, -4])
def test_local_memory_out_of_range(kernels, byte):
    out = kernels.zeros(1, np.uint32)
    kernels.run("slm_at", out, np.int32(1020))
    assert out.view()[0] == 3
    what = r"write of 4 bytes.* at 0x[0-9a-f]+ of SLM, of which the group has 1024 bytes"
    check_report(kernels.fault("slm_at", out, np.int32(byte)), "slm_at", what)


def test_group_that_does_not_fit(kernels):
    most = 128 if kernels.device == "dg2" else 64
    out = kernels.zeros(most + 1, np.uint32)
    kernels.run("meet", out, np.int32(1), local=most)
    text = kernels.fault("meet", out, np.int32(1), local=most + 1)
    assert f"kernel {PREFIX}meet: a group of {most + 1} threads does not fit" in text
    assert f"an Xe-core of {kernels.device} holds {most} with 128 registers" in text
    large = Kernels("checkers", kernels.device, registers=256)
    large.run("meet", out, np.int32(1), local=most // 2)
    assert "with 256 registers" in large.fault("meet", out, np.int32(1), local=most // 2 + 1)
    assert "4097 work-items is too large" in kernels.fault("meet", out, np.int32(1), local=4097)


# ---- 2D blocks ----------------------------------------------------------------------------------

GOOD = {"base": 0, "width": 128, "height": 16, "pitch": 256, "x": 4, "y": 1}
BROKEN = [
    ("u16", {"base": 32}, "the base address must be a multiple of 64 bytes; address modulo 64, got 32"),
    ("u16", {"base": 4}, "the base address must be a multiple of 64 bytes; address modulo 64, got 4"),
    ("u16", {"width": 130}, "the surface width must be a multiple of 4 bytes and of the element size, got 130"),
    ("u64", {"width": 132}, "the surface width must be a multiple of 4 bytes and of the element size, got 132"),
    ("u16", {"width": (1 << 24) + 4}, r"the surface width must be at most 2\^24 bytes, got 16777220"),
    ("u16", {"height": (1 << 24) + 1}, r"the surface height must be at most 2\^24 rows, got 16777217"),
    ("u16", {"pitch": 112}, "the surface pitch must be at least the width; pitch - width, got -16"),
    ("u16", {"pitch": (1 << 24) + 16}, r"the surface pitch must be at most 2\^24 bytes, got 16777232"),
    ("u16", {"pitch": 260}, "the surface pitch must be a multiple of (8|16) bytes, got 260"),
    ("u16", {"x": 3}, "x must be a multiple of 2 for 16-bit elements, got 3"),
    ("u8", {"x": 6}, "x must be a multiple of 4 for 8-bit elements, got 6"),
    ("u8", {"x": -2}, "x must be a multiple of 4 for 8-bit elements, got -2"),
    ("u64", {"x": -4}, "x must not be negative for transposed 64-bit elements, got -4"),
    ("store", {"base": 16}, "the base address must be a multiple of 64 bytes; address modulo 64, got 16"),
    ("store", {"x": 1}, "x must be a multiple of 2 for 16-bit elements, got 1"),
]


def run_surface(kernels: Kernels, kind: str, **changes) -> str | None:
    """The fault of a 2D block on such a surface, or None."""
    surface = GOOD | changes
    memory, block = kernels.zeros(16 * 256 + 64, np.uint8), kernels.zeros(256, np.uint8)
    sizes = [np.uint32(surface[name]) for name in ("width", "height", "pitch")]
    base = np.uint64(memory.address + surface["base"])
    pointers = (block, base) if kind == "store" else (base, block)
    arguments = *pointers, *sizes, np.int32(surface["x"]), np.int32(surface["y"])
    try:
        kernels.run(f"surface_{kind}", *arguments)
    except Fault as fault:
        return str(fault)
    return None


@pytest.mark.parametrize("row", BROKEN, ids=[f"{kind}-{change}" for kind, change, _ in BROKEN])
def test_rules_of_surfaces(with_blocks, row):
    kind, change, what = row
    assert run_surface(with_blocks, kind) is None
    text = run_surface(with_blocks, kind, **change)
    assert text is not None
    check_report(text, f"surface_{kind}", f"2D block: {what}")


def test_rules_of_surfaces_can_be_left_out(with_blocks):
    with checking("none"):
        assert run_surface(with_blocks, "u16", width=130) is None


def test_pitch_of_eight_bytes_is_enough_for_pvc_only(with_blocks):
    assert (run_surface(with_blocks, "u16", pitch=136) is None) == (with_blocks.device == "pvc")


def test_small_surfaces_are_counted_only(with_blocks):
    assert run_surface(with_blocks, "u16") is None
    assert last_record()["block2d_small_surfaces"] == 0
    assert run_surface(with_blocks, "u16", width=32, pitch=64) is None
    assert last_record()["block2d_small_surfaces"] == 1


def test_2d_block_on_dg2():
    """ocloc builds the message, the hardware has none."""
    dg2 = Kernels("checkers", "dg2")
    for kind in ("u8", "u16", "u64", "store"):
        text = run_surface(dg2, kind)
        assert text is not None
        check_report(text, f"surface_{kind}", "Xe-HPG has no 2D block messages")


def test_2d_block_reads_inside_its_allocation_only(with_blocks):
    """The surface may promise more than there is."""
    text = run_surface(with_blocks, "u16", height=64, y=20)
    assert text is not None
    check_report(text, "surface_u16", "read of 32 bytes", "past the end of the 4160-byte device allocation")
