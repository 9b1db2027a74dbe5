"""What a thread waits for, as its instructions' annotations tell it: listings that are written here."""

import pytest
from xeflash.sim.waits import Entry, Waits, main_loop, mix, waits_of


def listing(*texts: str, kind: str = "float_alu", count: int = 10) -> list[Entry]:
    return [(16 * i, count, kind, text) for i, text in enumerate(texts)]


def waits(*entries: list[Entry]) -> Waits:
    return waits_of("bmg", [entry for some in entries for entry in some])


ADD = "add (16|M0) r2.0<1>:f r3.0<1;1,0>:f r4.0<1;1,0>:f"


def test_a_register_of_an_in_order_pipe_is_waited_for() -> None:
    found = waits(listing(ADD, ADD + " {F@1}"))
    assert found.waiting == {"Dist/Acc": 10}  # 11 clocks from the start of the first one, of which one has gone by
    assert found.at == {16: 10}
    assert found.clocks == 12
    assert not waits(listing(ADD, ADD)).waiting
    assert waits(listing(ADD, ADD, ADD + " {F@2}")).waiting == {"Dist/Acc": 9}
    assert waits(listing(ADD, ADD + " {@1}")).waiting == {"Dist/Acc": 10}, "its own pipe"
    assert waits(listing(ADD, ADD + " {A@1}")).waiting == {"Dist/Acc": 10}, "any pipe"
    assert not waits(listing(ADD, ADD + " {I@1}")).waiting, "nothing is in that pipe"


def test_wide_instructions_take_longer() -> None:
    wide = ADD.replace("16|", "32|")
    assert waits(listing(wide, wide + " {F@1}")).waiting == {"Dist/Acc": 11}


def test_a_token_is_waited_for_and_named_by_who_sets_it() -> None:
    load = listing("send.ugm (1|M0) r2 r3 null:0 0x0 0x02808403 {$3} // load_block2d.ugm.d32t.a64", kind="sends")
    use = listing("dpas.8x8 (16|M0) r5.0:f null:f r2.0:bf r6.0:bf {$3.dst}", kind="dpas")
    assert waits(load, use).waiting == {"SBID of messages": 44}
    all_of = listing("sync.allwr 0x8", kind="sync")
    assert waits(load, all_of).waiting == {"SBID of messages": 44}
    assert not waits(load, listing("sync.allwr 0x10", kind="sync")).waiting
    payload = listing("mov (1|M0) r3.5<1>:d r4.0<0;1,0>:d {$3.src}", kind="moves")
    assert waits(load, payload).waiting == {"SBID of messages": 11}
    shared = listing("send.slm (1|M0) r2 r3 null:0 0x0 0x02108500 {$3} // load.slm.d32x1t.a32", kind="sends")
    assert waits(shared, use).waiting == {"SBID of shared memory": 27}
    assert waits(load, load, shared).in_flight == 6, "those of the pass before, too"


def test_barriers_and_branches() -> None:
    assert waits(listing("(W) sync.bar null", kind="sync")).waiting == {"Sync": 30}
    assert waits(listing("(W) jmpi (1|M0) 0x10", kind="control")).waiting == {"Control": 23}


def test_rare_branches_are_not_of_the_main_loop() -> None:
    often, rarely = listing(ADD, count=100), listing(ADD, ADD, count=3)
    dpas = listing("dpas.8x8 (16|M0) r5.0:f null:f r2.0:bf r6.0:bf", kind="dpas", count=90)
    spin = listing(ADD, count=1000)
    assert main_loop([*often, *rarely, *dpas, *spin]) == [*often, *dpas, *spin], "held to the most frequent dpas"
    assert main_loop([*often, *rarely]) == often
    assert main_loop([]) == []
    assert mix([*often, *rarely, *dpas]) == {"float_alu": 106, "dpas": 90}


@pytest.mark.parametrize("arch", ("pvc", "bmg", "dg2"))
def test_each_architecture_has_latencies(arch: str) -> None:
    chain = listing("dpas.8x8 (16|M0) r5.0:f r5.0:f r2.0:bf r6.0:bf {$1}", "sync.nop null {$1.dst}", kind="dpas")
    assert waits_of(arch, chain).waiting["SBID of dpas"] > 20
