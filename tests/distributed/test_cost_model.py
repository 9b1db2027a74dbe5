"""The model of time: against times counted by hand, and what has to hold whatever the inputs are."""

import dataclasses

import pytest
from xeflash.bench import formats
from xeflash.bench.distributed import model_rows
from xeflash.bench.distributed.model import MODEL_WAYS, Layer, Machine, best, seconds, shared_heads

# Round numbers: 1 TFLOP/s, 1 GB/s inside a node and between, no time for launches, messages and memory to speak of.
TINY = 1e-9
PLAIN = Machine(
    tflops=1, efficiency=1, efficiency_backward=1, launch_us=TINY, memory_gb=1e3, memory_gbs=1e9, per_node=4,
    inside_gbs=1, inside_us=TINY, between_gbs=1, between_us=TINY,
)  # fmt: skip
LAYER = Layer(tokens=4000, heads=8, kv_heads=8, dim=125, dtype="bf16")
FLOPS = 4 * 8 * 4000**2 * 125 / 2  # 32e9
KV = 2 * 8 * 125 * 2  # bytes of K and V of a token: 4000


def test_compute_is_counted():
    assert LAYER.flops == FLOPS == 32e9
    one = seconds(LAYER, PLAIN, 1, "ring")
    assert (one.forward, one.backward) == (pytest.approx(0.032), pytest.approx(0.08))
    assert one.efficiency == pytest.approx(1)
    assert dataclasses.replace(LAYER, causal=False).flops == 64e9


def test_all_gather_hides_nothing():
    each = seconds(LAYER, PLAIN, 2, "all_gather")
    assert each.forward == pytest.approx(0.016 + 2000 * KV / 1e9)  # 8 ms
    assert each.backward == pytest.approx(0.04 + 3 * 2000 * KV / 1e9)  # K and V again, dK and dV in fp32


def test_the_ring_hides_what_is_shorter_than_a_step():
    each = seconds(LAYER, PLAIN, 2, "ring")  # steps of 8 ms of compute, and 8 ms of transport
    assert each.forward == pytest.approx(0.016)
    # Backward: a step computes 20 ms and sends 8 + 16 ms; the last gradients travel alone.
    assert each.backward == pytest.approx(0.024 + 0.020 + 0.016)
    slow = seconds(LAYER, dataclasses.replace(PLAIN, inside_gbs=0.5), 2, "ring")
    assert slow.forward == pytest.approx(0.016 + 0.008)


def test_all_to_all_sends_a_part_of_everything():
    each = seconds(LAYER, PLAIN, 4, "all_to_all")
    sent = 3 / 4 * 1000 * 4 * KV / 2 / 1e9  # q, k, v and out
    assert each.forward == pytest.approx(0.008 + sent)
    assert each.backward == pytest.approx(0.02 + sent)
    # Two nodes of 4: a node's link takes what its 4 devices send to the other 4.
    both = seconds(LAYER, PLAIN, 8, "all_to_all")
    assert both.forward == pytest.approx(0.004 + 4 * 4 / 8 * 500 * 4 * KV / 2 / 1e9)


def test_a_mesh_exchanges_inside_and_sends_round_outside():
    each = seconds(LAYER, PLAIN, 8, "mesh")
    exchange = 3 / 4 * 500 * 4 * KV / 2 / 1e9
    hop = 4 * 500 * KV / 1e9  # four devices at once on the link of their node, each 500 tokens of all heads
    assert shared_heads(LAYER, PLAIN, 8) == 4
    assert each.forward == pytest.approx(exchange + max(0.002, hop) + 0.002)
    assert seconds(LAYER, PLAIN, 4, "mesh").refused  # no ring is left


def test_a_message_costs_time_of_its_own():
    slow = dataclasses.replace(PLAIN, inside_us=1000)
    for way, messages in (("all_gather", 3), ("all_to_all", 2 * 3)):
        with_cost, without = (seconds(LAYER, machine, 4, way).forward for machine in (slow, PLAIN))
        assert with_cost - without == pytest.approx(1e-3 * messages, rel=1e-4)


@pytest.mark.parametrize("way", MODEL_WAYS)
def test_better_inputs_never_make_it_slower(way):
    layer, machine = Layer(tokens=65536), Machine()
    before = seconds(layer, machine, 16, way)
    assert 0 < before.efficiency <= 1 and before.forward > 0
    for name in ("tflops", "inside_gbs", "between_gbs", "memory_gbs", "launch_us", "inside_us", "between_us"):
        factor = 0.5 if name.endswith("_us") else 2
        after = seconds(layer, dataclasses.replace(machine, **{name: factor * getattr(machine, name)}), 16, way)
        assert after.total <= before.total, name


def test_the_fastest_that_fits_comes_first():
    layer = Layer(tokens=1 << 20)
    ways = best(layer, Machine(), 64)
    times = [each.total for each in ways.values()]
    assert times == sorted(times) and "all_gather" not in ways  # it holds 34 GB beyond its q, k and v, of 6
    assert "all_to_all" not in ways  # 64 ranks do not divide 32 heads
    tight = best(layer, Machine(memory_gb=0.001), 64)
    assert set(tight) == {"ring", "all_gather", "mesh"}  # none fits: all are shown


def test_rows_are_written_and_read_back():
    results = model_rows.rows([Layer(131072)], Machine(), (2, 64))
    assert results[1].row.all_to_all_ms is None and results[0].row.mesh_ms is None
    head = model_rows.header(Machine())
    for name, read in formats.READERS.items():
        written = formats.WRITERS[name](head, results, model_rows.LAYOUT)
        assert [result.row for result in read(written, model_rows.LAYOUT)] == [result.row for result in results]
    text = formats.to_md(head, results, model_rows.LAYOUT)
    assert "a MODEL" in text and "not measured" in text and "inside_gbs 12" in text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Machine(tflops=0), "Machine: tflops must be positive, got 0"),
        (lambda: Machine(efficiency=1.5), "Machine: efficiency must be at most 1, got 1.5"),
        (lambda: seconds(LAYER, PLAIN, 3, "ring"), r"seconds: world must divide the tokens \(4000\).*got 3"),
        (lambda: seconds(LAYER, PLAIN, 10, "ring"), "a multiple of the devices of a node"),
        (lambda: seconds(LAYER, PLAIN, 2, "star"), "seconds: how must be one of ring, .*got 'star'"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call()
