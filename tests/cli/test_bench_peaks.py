"""The machine's peaks, and which of them holds a call."""

import pytest
from xeflash import _core
from xeflash.bench import environ, limits, peak, reading
from xeflash.bench.limits import Limit, Peaks, instruction, words

FP32 = ("cpu-generic", "fp32")
PEAKS = Peaks({FP32: 100.0}, {"memory": 10.0, "L3": 50.0, "L2": 200.0}, {}, {"L3": 1000, "L2": 100})
SECOND = 1e-9  # in which 10 bytes come from memory


@pytest.mark.parametrize(
    ("flops", "size", "seconds", "touched", "limit"),
    [
        (1, 5000, 1000 * SECOND, None, ("memory", 10.0, 50)),
        (1, 500, 20 * SECOND, None, ("L3", 50.0, 50)),  # it fits
        (1, 1000, 200 * SECOND, None, ("memory", 10.0, 50)),  # with nothing beside it in the cache, it would
        (1, 500, 100 * SECOND, 5000, ("memory", 10.0, 50)),  # all that is touched does not
        (1, 5000, 400 * SECOND, None, ("L3", 50.0, 25)),  # faster than memory, so a part of it lay in the cache
        (1, 500, 5 * SECOND, None, ("L2", 200.0, 50)),
        (1, 500, 1 * SECOND, None, ("L2", 200.0, 250)),  # no smaller cache is known
        (51_000, 5000, 1000 * SECOND, None, ("arithmetic", 100.0, 51)),
        (49_000, 5000, 1000 * SECOND, None, ("memory", 10.0, 50)),
    ],
)
def test_the_peak_that_allows_least_holds(flops, size, seconds, touched, limit):
    found = PEAKS.limit(FP32, flops, size, seconds, touched)
    assert found[:2] == limit[:2] and found.percent_of_peak == pytest.approx(limit[2])


def test_more_than_memory_gives_is_never_said_of_memory():
    """Of GPUs no cache is measured."""
    peaks = Peaks({}, {"memory": 10.0})
    assert peaks.limit(FP32, 1, 100, 5 * SECOND) == Limit("a cache, not measured", None, None)
    assert words(*peaks.limit(FP32, 1, 100, 5 * SECOND)[:2]) == "a cache, not measured"
    assert Peaks().limit(FP32, 1, 100, SECOND) is None and words(None, None) == "-"


def test_the_better_of_two_samples_counts_number_by_number():
    first, second = (
        Peaks({FP32: a}, {"memory": b, "L3": c}, {"L3": c}, {"L3": 1000})
        for a, b, c in ((2.0, 3.0, 4.0), (1.0, 5.0, 4.0))
    )
    for both in (first.better(second), second.better(first), Peaks().better(first).better(second)):
        assert both == Peaks({FP32: 2.0}, {"memory": 5.0, "L3": 4.0}, {"L3": 4.0}, {"L3": 1000})
        assert list(both.gbytes) == ["memory", "L3"]


@pytest.mark.parametrize(
    ("device", "algorithm", "dtype", "arch", "multiplies"),
    [
        ("cpu-generic", "flash_fwd", "bf16", "cpu-generic", "fp32"),
        ("cpu-amx-bf16", "flash_fwd", "bf16", "cpu-amx-bf16", "bf16"),
        ("cpu-amx-bf16", "flash_decode", "bf16", "cpu-avx512-bf16", "bf16"),
        ("cpu-amx-bf16", "linear", "bf16", "cpu-avx512-bf16", "bf16"),
        ("cpu-amx-bf16", "flash_fwd", "fp16", "cpu-avx512", "fp32"),
        ("cpu-avx512", "flash_bwd_dkv", "bf16", "cpu-avx512", "fp32"),
        ("pvc", "flash_fwd", "bf16", "pvc", "bf16"),
    ],
)
def test_a_kernel_is_held_to_its_own_instruction(monkeypatch, device, algorithm, dtype, arch, multiplies):
    monkeypatch.setattr(_core, "arch_of", lambda *_: device)
    assert peak.arch_of(algorithm, dtype, "cpu") == arch
    assert instruction(arch, dtype) == (arch, multiplies)


def test_caches_are_those_of_the_cpus(monkeypatch, tmp_path):
    def cache(cpu, index, level, kind, size, shared):
        folder = tmp_path / f"cpu{cpu}" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("type", kind), ("size", size), ("shared_cpu_list", shared)):
            (folder / name).write_text(f"{text}\n")

    for cpu in range(4):
        cache(cpu, 0, 1, "Data", "32K", cpu)
        cache(cpu, 1, 2, "Instruction", "64K", cpu)
        cache(cpu, 2, 2, "Unified", "512K", cpu)
        cache(cpu, 3, 3, "Unified", "8192K", "0-2" if cpu < 3 else "3")
    monkeypatch.setattr(environ, "_CPUS", tmp_path)
    assert environ.data_caches([0, 1, 3]) == {2: (512 << 10, 3), 3: (8 << 20, 2)}
    assert environ.data_caches([7]) == {}
    assert environ.last_level_cache() == 8 << 20


@pytest.mark.parametrize(
    ("caches", "threads"),
    [
        ({2: (512 << 10, 2), 3: (32 << 20, 1)}, 2),
        ({2: (2 << 20, 56), 3: (105 << 20, 1)}, 56),
        ({2: (2 << 20, 56), 3: (105 << 20, 1)}, 112),  # two threads share a core
        ({2: (1 << 20, 8)}, 1),
    ],
)
def test_what_measures_a_cache_fits_in_it_and_in_none_that_is_smaller(caches, threads):
    memory, *found = reading.places(caches, threads, 512 << 20)
    assert memory.name == limits.MEMORY and memory.part * threads <= 512 << 20
    assert [place.name for place in found] == [f"L{level}" for level in sorted(caches, reverse=True)]
    inner = 0
    for place in reversed(found):
        (size, count), smaller = caches[int(place.name[1:])], inner
        assert smaller < place.part < smaller + size * count / threads and place.part % 256 == 0
        assert place.capacity <= size * count
        inner = min(size, size * count // threads)


def test_peaks_are_measured_and_only_grow(monkeypatch):
    monkeypatch.setattr(peak, "_READ_BYTES", 64 << 20)
    meter = peak.Meter({instruction(peak.arch_of("flash_fwd", "bf16", "cpu"), "bf16")}, "cpu")
    meter.sample()
    first = meter.peaks
    meter.sample()
    for name in ("gflops", "gbytes", "gbytes_of_core"):
        before, after = getattr(first, name), getattr(meter.peaks, name)
        assert before and set(before) == set(after)
        assert all(after[key] >= rate > 0 for key, rate in before.items())
    assert set(first.gbytes) == {"memory", *first.capacity}


def test_peaks_of_gpus_are_those_of_torch(monkeypatch):
    monkeypatch.setattr(peak, "_READ_BYTES", 1 << 20)
    monkeypatch.setattr(peak, "_GEMM_SIZES", (64,))
    monkeypatch.setattr(peak, "Reader", lambda *_: None)  # as of a GPU
    meter = peak.Meter({("pvc", "bf16"), ("pvc", "fp32")}, "cpu")
    meter.sample()
    assert set(meter.peaks.gflops) == {("pvc", "bf16"), ("pvc", "fp32")} and set(meter.peaks.gbytes) == {"memory"}
    assert set(meter.peaks.named()) == {"pvc bf16 GFLOP/s", "pvc fp32 GFLOP/s", "memory GB/s"}


def test_a_cache_is_read_as_often_as_it_is_said(monkeypatch):
    """A loop that the compiler takes apart would read once, or nothing."""
    import torch

    buffer = torch.ones(1 << 20)
    native, _ = peak.peak_kernel(peak.arch_of("peak", "fp32", "cpu"), "fp32")
    once, often = (
        min(_core.time_peak(native, "read_peak", times, 1, buffer.data_ptr(), 1 << 20) for _ in range(5))
        for times in (20, 2000)
    )
    assert often > 10 * once
