"""What the simulator counts of the bytes that pass its caches (caches=...): lines of 64 bytes, sets of 16."""

import contextlib
import json
import subprocess
import sys

import numpy as np
import pytest
from esimd import DEVICES, PREFIX, Kernels, checking, last_record, native, set_check, simulator

KIB, MIB = 1 << 10, 1 << 20
COUNTED = ("l2_read", "memory_read", "memory_written", "prefetches_lost")
# Of an Xe-core in KiB: L1 alone, and beside two groups that have 64 KiB of shared local memory each.
L1 = {"pvc": (512, 384), "bmg": (256, 128), "dg2": (192, 192)}


@pytest.fixture(scope="module", params=DEVICES)
def kernels(request) -> Kernels:
    return Kernels("caches", request.param)


def array(kernels, size):
    return kernels.zeros(size // 4, np.uint32)


def counts_of(kernels, name, *arguments, groups=1):
    """The bytes, and the lost lines, of a launch."""
    kernels.run(name, *arguments, groups=groups)
    return {field: last_record()[field] for field in COUNTED}


@contextlib.contextmanager
def empty_caches(kind="l2:1", more="none"):
    """Those of the next launches; the L2 has one MiB."""
    simulator().xesim_clear_caches()
    with checking(f"{more},caches={kind}"):
        yield


def stream(kernels, size, times, groups=1, name="stream", source=None):
    """Counts of groups that each read `size` bytes several times."""
    source = source or array(kernels, size * groups)
    return counts_of(
        kernels, name, source, array(kernels, 256 * groups), np.uint32(size // 4), np.uint32(times), groups=groups
    )


def test_what_fits_comes_from_memory_once(kernels):
    size = 768 * KIB
    with empty_caches():
        found = stream(kernels, size, times=2)
    assert found == {"l2_read": 2 * size, "memory_read": size, "memory_written": 0, "prefetches_lost": 0}


def test_what_does_not_fit_comes_from_memory_each_time(kernels):
    size = 1536 * KIB
    with empty_caches():
        found = stream(kernels, size, times=2)
        assert found == {"l2_read": 2 * size, "memory_read": 2 * size, "memory_written": 0, "prefetches_lost": 0}
    with empty_caches("l2:2"):
        assert stream(kernels, size, times=2)["memory_read"] == size


def test_lines_that_are_used_again_and_again_stay(kernels):
    size = 4 * MIB
    with empty_caches():
        found = counts_of(kernels, "keep_reading", array(kernels, size), array(kernels, 256), np.uint32(size // 4))
    assert found == {"l2_read": 2 * size, "memory_read": size, "memory_written": 0, "prefetches_lost": 0}


@pytest.mark.parametrize("device", DEVICES)
def test_the_device_has_a_size_of_its_own(device):
    size = {"pvc": 204 * MIB, "bmg": 18 * MIB, "dg2": 16 * MIB}[device]
    kernels = Kernels("caches", device)
    for share, times in ((7 / 8, 1), (9 / 8, 2)):
        with empty_caches("l2"):
            read = int(size * share) // 256 * 256
            assert stream(kernels, read, times=2)["memory_read"] == times * read


def test_lines_that_were_prefetched_and_thrown_out_are_counted(kernels):
    for size, lost in ((768 * KIB, 0), (1536 * KIB, 1536 * KIB // 64)):
        with empty_caches():
            found = counts_of(
                kernels, "prefetch_and_read", array(kernels, size), array(kernels, 256), np.uint32(size // 4)
            )
        assert found["prefetches_lost"] == lost
        assert found["memory_read"] == size + 64 * lost
        assert found["l2_read"] == 2 * size


def test_prefetches_of_no_memory_bring_nothing(kernels):
    size = 64 * KIB
    source = array(kernels, size)
    nowhere = np.uint64(source.address + (1 << 36))
    with empty_caches():
        with pytest.raises(Exception, match="read of"):
            kernels.run("prefetch_and_read", nowhere, array(kernels, 256), np.uint32(size // 4))
        kernels.run("stream", source, array(kernels, 256), np.uint32(size // 4), np.uint32(1))
        assert last_record()["memory_read"] == size


def test_whole_lines_are_written_back_when_they_must_go(kernels):
    size = 2 * MIB
    with empty_caches():
        found = counts_of(kernels, "fill", array(kernels, size), np.uint32(size // 4))
        assert found["memory_read"] == 0
        assert found["memory_written"] == size - MIB
        # They leave for what comes next.
        assert stream(kernels, size, times=1)["memory_written"] == MIB


def test_what_a_line_lacks_is_read_when_it_is_asked_for(kernels):
    size = 256 * KIB
    source = array(kernels, size)
    with empty_caches():
        assert counts_of(kernels, "fill_halves", source, np.uint32(size // 4))["memory_read"] == 0
        assert stream(kernels, size, times=2, source=source)["memory_read"] == size


def test_an_atomic_reads_and_changes_its_line(kernels):
    counter = array(kernels, 4)
    with empty_caches():
        assert [counts_of(kernels, "add_one", counter)["memory_read"] for _ in range(2)] == [64, 0]
        assert stream(kernels, 2 * MIB, times=1)["memory_written"] == 64


def test_l2_keeps_lines_until_it_is_cleared(kernels):
    size = 512 * KIB
    source = array(kernels, size)
    with empty_caches():
        assert stream(kernels, size, times=1, source=source)["memory_read"] == size
        assert stream(kernels, size, times=1, source=source)["memory_read"] == 0
        simulator().xesim_clear_caches()
        assert stream(kernels, size, times=1, source=source)["memory_read"] == size


@pytest.mark.parametrize("name", ["stream", "stream_beside_slm"])
def test_each_core_has_an_l1(kernels, name):
    size = L1[kernels.device][name != "stream"] * KIB
    for share, times in ((7 / 8, 1), (9 / 8, 2)):
        read = int(size * share) // 256 * 256
        with empty_caches("l1+l2"):
            assert stream(kernels, read, 2, name=name)["l2_read"] == times * read
            # It is empty when a launch begins.
            assert stream(kernels, read, 1, name=name)["l2_read"] == read


def test_groups_on_different_cores_share_no_l1(kernels):
    size = 32 * KIB
    source = array(kernels, 2 * size)
    arguments = source, array(kernels, 512), np.uint32(0), np.uint32(1)
    with empty_caches("l1+l2"):
        assert stream(kernels, size, times=2, groups=2)["l2_read"] == 2 * size
        assert counts_of(kernels, "stream", *arguments, groups=2)["l2_read"] == 0


@pytest.mark.parametrize("checks", ["none", "all"])
def test_threads_that_fit_on_the_device_run_at_the_same_time(kernels, checks):
    """Each of them alone would find what it reads again."""
    size, groups = 32 * KIB, 64
    with empty_caches(more=checks):
        assert stream(kernels, size, times=2, groups=groups)["memory_read"] == 2 * size * groups


def test_groups_wait_for_places(kernels):
    """Two groups with 64 KiB of shared local memory fit on a core; what those on the device read fits in its L2."""
    places = 2 * {"pvc": 64, "bmg": 20, "dg2": 32}[kernels.device]
    size, groups = 768 * KIB // places // 256 * 256, 4 * places
    with empty_caches():
        assert stream(kernels, size, 2, groups, "stream_beside_slm")["memory_read"] == size * groups
        assert stream(kernels, size, 2, groups)["memory_read"] == 2 * size * groups


def test_counts_are_the_same_in_every_process(kernels, tmp_path):
    """Their addresses are not."""
    size, groups = 25 * KIB, 41  # a little more than the cache has
    file = tmp_path / "kernel"
    file.write_bytes(native("caches", kernels.device, kernels.registers, kernels.lanes))
    code = f"""
import json, os, sys
import numpy as np
os.environ["XEFLASH_SIM_CHECK"] = "none,caches=l2:1"
from xeflash.sim import machine
from xeflash.sim.library import load_library
m = machine.Machine({kernels.device!r})
source, sums = (m.array(np.zeros(n, np.uint8)) for n in ({size * groups}, {256 * groups}))
arguments = [source, sums, np.uint32({size // 4}), np.uint32(3)]
m.load(open(sys.argv[1], "rb").read()).launch("{PREFIX}stream", ({groups}, 1, 1), (1, 1, 1), arguments)
library = load_library()
library.xesim_last_launches.restype = machine.ctypes.c_char_p
(record,) = json.loads(library.xesim_last_launches())
print(source.address)
print([record[field] for field in {COUNTED!r}])
"""
    outputs = [
        subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True).stdout
        for _ in range(3)
    ]
    addresses, found = zip(*(output.splitlines() for output in outputs), strict=True)
    assert len(set(addresses)) > 1
    assert len(set(found)) == 1
    _, read, *_ = json.loads(found[0])
    assert size * groups < read < 3 * size * groups


def test_nothing_is_counted_unless_it_is_asked_for(kernels):
    for checks in ("all", "none", "none,caches=off"):
        with checking(checks):
            assert "caches" not in simulator().xesim_get_check().decode()
            assert set(stream(kernels, 64 * KIB, times=1).values()) == {0}


@pytest.mark.parametrize("text", ["l1", "l3", "", "l2:", "l2:0", "l2:-1", "l2:18MB", "off:3", "l2:99999999999"])
def test_other_caches_are_refused(text):
    with pytest.raises(AssertionError, match=f"'caches={text}' is not understood; .*caches=off|l2|l1"):
        set_check(f"none,caches={text}")


def test_the_setting_can_be_read_and_given_again():
    for text in ("l2", "l1+l2", "l2:24"):
        with checking(f"none,caches={text}"):
            said = simulator().xesim_get_check().decode()
            assert f",caches={text}," in said
            set_check(said)
            assert simulator().xesim_get_check().decode() == said
