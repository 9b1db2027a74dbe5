"""goto, join, jmpi, call and ret: random nested branches, loops, breaks and calls, as compilers write them."""

import pytest
from assembler import Ins, Operand, State, assemble, dst, execute, imm, reg
from flow_reference import run_program
from instruction_maker import FAMILIES, Maker, differences
from scalar_reference import Thread

VALUE, COUNT, LIMIT = 20, 30, 40  # registers: what branches look at and change, loop counters, trip counts


class Writer:
    """Structured code in the machine's branches. `outer`: the next join at which lanes may wait."""

    def __init__(self, family: str, seed: int, lanes: int = 16):
        self.m = Maker(family, seed)
        self.rng, self.family, self.lanes = self.m.rng, family, lanes
        self.code: list[Ins] = []
        self.labels = 0
        self.depth = 0
        for register in range(VALUE, VALUE + 4):
            self.m.put(register, "ud", [self.rng.getrandbits(16) for _ in range(lanes)])

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def emit(self, ins: Ins, label: str = "") -> None:
        self.code.append(ins.with_(label=label))

    def work(self) -> None:
        n = self.lanes
        for _ in range(self.rng.randint(1, 2)):
            factor = imm(self.rng.randrange(1, 1000), "ud")
            op = self.rng.choice(["add", "xor"])
            self.emit(Ins(op, n, dst(VALUE, "ud"), (reg(VALUE, "ud"), factor)))

    def test(self, flag: int) -> None:
        """A condition that differs between lanes."""
        n, scratch = self.lanes, 60
        mask = imm(1 << self.rng.randrange(8), "ud")
        self.emit(Ins("and", n, dst(scratch, "ud"), (reg(VALUE, "ud"), mask)))
        self.emit(
            Ins(
                "cmp",
                n,
                Operand("ud", region=(0, 32, 1), file="null"),
                (reg(scratch, "ud"), imm(0, "ud")),
                cond=("ne", flag, 0),
            )
        )

    def goto(self, jip: str, uip: str, pred=None) -> None:
        self.emit(Ins("goto", self.lanes, jip=jip, uip=uip, pred=pred))

    def join(self, label: str, outer: str) -> None:
        self.emit(Ins("join", self.lanes, jip=outer), label)

    def branch(self, outer: str, out_of_loop: str) -> None:
        otherwise, end = self.label(), self.label()
        self.test(0)
        self.goto(otherwise, otherwise, (0, 0, True, ""))
        self.block(otherwise, out_of_loop)
        self.goto(otherwise, end)
        self.join(otherwise, end)
        self.block(end, out_of_loop)
        self.join(end, outer)

    def loop(self, outer: str) -> None:
        start, out = self.label(), self.label()
        n, count, limit = self.lanes, COUNT + 2 * self.depth, LIMIT + 2 * self.depth
        self.m.put(limit, "ud", [self.rng.randrange(1, 5) for _ in range(n)])
        self.emit(Ins("mov", n, dst(count, "ud"), (imm(0, "ud"),)))
        self.emit(Ins("add", n, dst(count, "ud"), (reg(count, "ud"), imm(1, "ud"))), start)
        self.block(out, out)
        if self.rng.random() < 0.5:  # break
            self.test(1)
            self.goto(out, out, (1, 0, False, ""))
        again = ("lt", 0, 0)
        self.emit(
            Ins(
                "cmp",
                n,
                Operand("ud", region=(0, 32, 1), file="null"),
                (reg(count, "ud"), reg(limit, "ud")),
                cond=again,
            )
        )
        if self.rng.random() < 0.5:
            self.emit(Ins("goto.b", n, jip=out, uip=start, pred=(0, 0, False, "")))
        else:
            self.goto(out, out, (0, 0, True, ""))
            self.emit(Ins("jmpi", 1, jip=start, text=f"(W) jmpi {start}"))
        self.join(out, outer)

    def block(self, outer: str, out_of_loop: str = "") -> None:
        self.depth += 1
        for _ in range(self.rng.randint(1, 2)):
            kind = self.rng.random()
            if self.depth > 3 or kind < 0.3:
                self.work()
            elif kind < 0.7:
                self.branch(outer, out_of_loop)
            elif kind < 0.8 and out_of_loop:  # break from within branches
                self.test(1)
                self.goto(outer, out_of_loop, (1, 0, False, ""))
            else:
                self.loop(outer)
        self.depth -= 1


def run_and_compare(state: State, code: list[Ins], mask: int) -> int:
    got = state.copy()
    fault = execute(got, assemble(state.family, code), execution_mask=mask)
    assert fault is None, fault
    thread = Thread(state.copy(), mask)
    steps = run_program(thread, code)
    wrong = differences(got, thread.state, thread.writer)
    assert not wrong, "\n".join(wrong[:5])
    return steps


@pytest.mark.parametrize("mask", [0xFFFF, 0x8421, 0x0001, 0xFFFFFFFF], ids=hex)
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("family", FAMILIES)
def test_nested_branches_and_loops(family, seed, mask):
    w = Writer(family, seed)
    for _ in range(3):
        end = w.label()
        w.block(end)
        w.join(end, "END")
    w.emit(Ins("nop", 1, text="nop"), "END")
    run_and_compare(w.m.state, w.code, mask)


@pytest.mark.parametrize("family", FAMILIES)
def test_wide_branches(family):
    for seed in range(4):
        w = Writer(family, 100 + seed, lanes=32)
        w.branch("END", "")
        w.loop("END")
        w.emit(Ins("nop", 1, text="nop"), "END")
        run_and_compare(w.m.state, w.code, 0xFFFFFFFF if seed % 2 else 0x1234_5678)


@pytest.mark.parametrize("family", FAMILIES)
def test_calls(family):
    w = Writer(family, 5)
    w.emit(Ins("jmpi", 1, jip="MAIN", text="(W) jmpi MAIN"))
    w.emit(Ins("add", 16, dst(VALUE, "ud"), (reg(VALUE, "ud"), imm(3, "ud"))), "INNER")
    w.emit(Ins("ret", 16, srcs=(reg(70, "ud", 4),)))
    w.emit(Ins("xor", 16, dst(VALUE, "ud"), (reg(VALUE, "ud"), imm(0x55, "ud"))), "OUTER")
    w.emit(Ins("call", 16, dst(70, "ud", 4), jip="INNER"))
    w.branch("BACK", "")
    w.join("BACK", "BACK2")
    w.emit(Ins("ret", 16, srcs=(reg(72, "ud"),)), "BACK2")
    w.emit(Ins("call", 16, dst(72, "ud"), jip="OUTER"), "MAIN")
    w.test(0)
    w.goto("REST", "REST", (0, 0, False, ""))
    w.emit(Ins("call", 16, dst(70, "ud", 4), jip="INNER"))
    w.join("REST", "END")
    w.work()
    w.emit(Ins("nop", 1, text="nop"), "END")
    run_and_compare(w.m.state, w.code, 0xFFFF)
    run_and_compare(w.m.state, w.code, 0x0F3C)


@pytest.mark.parametrize("family", FAMILIES)
def test_jumps_look_at_channel_0_of_the_flag(family):
    for bits, inverse in ((1, False), (2, False), (0xFFFFFFFE, True), (1, True)):
        w = Writer(family, 1)
        w.m.state.flags[1] = bits
        pred = (1, 0, inverse, "")
        w.emit(Ins("jmpi", 1, jip="END", pred=pred, text=f"(W&{'~' if inverse else ''}f1.0) jmpi END"))
        w.work()
        w.emit(Ins("nop", 1, text="nop"), "END")
        run_and_compare(w.m.state, w.code, 0xFFFF)


@pytest.mark.parametrize("text", ["sync.nop null", "sync.allrd ($1,$2)", "sync.allwr null", "nop"])
@pytest.mark.parametrize("family", FAMILIES)
def test_synchronisation_changes_nothing(family, text):
    run_and_compare(Maker(family, 1).state, [Ins(text.split(".")[0].split()[0], 1, text=text)], 0xFFFF)


UNSUPPORTED = {
    "if": "if (16|M0) B B",
    "else": "else (16|M0) B B",
    "endif": "endif (16|M0) B",
    "while": "while (16|M0) B",
    "break": "break (16|M0) B B",
    "cont": "cont (16|M0) B B",
    "halt": "halt (16|M0) B B",
    "brd": "brd (16|M0) B",
    "brc": "brc (16|M0) B B",
    "calla": "calla (1|M0) r3.0 0x10",
    "srnd": "srnd (16|M0) r40.0<1>:hf r10.0<1;1,0>:f r11.0<1;1,0>:f",
    "dpasw": "dpasw.8x8 (8|M0) r40:f null:f r10:bf r20.0:bf",
    "illegal": "illegal",
    "cmpn": "cmpn (16|M0) (lt)f0.0 null<1>:f r10.0<1;1,0>:f r11.0<1;1,0>:f",
}
MISSING = {"srnd": {"dg2"}, "dpasw": {"pvc", "bmg"}}  # instructions that the family does not have


@pytest.mark.parametrize("op", UNSUPPORTED)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_not_simulated_stops_with_address_bits_and_disassembly(family, op):
    if family in MISSING.get(op, ()):
        pytest.skip(f"{family} has no {op}")
    code = assemble(family, [Ins(op, 1, text=UNSUPPORTED[op]), Ins("nop", 1, label="B", text="nop")])
    fault = execute(Maker(family, 1).state, code)
    assert (
        fault is not None
        and "0x0000" in fault
        and op in fault
        and f"{int.from_bytes(code[:8], 'little'):016x}" in fault
    )
