"""Control flow as the descriptions have it: an execution mask, and for every disabled lane the place where it waits."""

from __future__ import annotations

from assembler import GRF_BYTES, Ins
from scalar_reference import Thread, Unknown, step

INSTRUCTION_BYTES = 16
MAX_STEPS = 100_000


def run_program(t: Thread, program: list[Ins]) -> int:
    """Executes up to the end of the list; returns the number of instructions."""
    place = {ins.label: i for i, ins in enumerate(program) if ins.label}
    place.setdefault("END", len(program))
    waits: dict[int, int] = {}
    dispatched = t.mask
    pc = steps = 0
    while pc < len(program):
        steps += 1
        if steps > MAX_STEPS:
            raise Unknown("a program that does not end")
        ins, here = program[pc], pc
        pc += 1
        width = (1 << ins.size) - 1 << ins.offset  # branches are decided by the lanes of their own width
        if ins.op == "jmpi":
            if t.predicate(ins, 0):
                pc = place[ins.jip]
        elif ins.op in ("goto", "goto.b"):
            enabled = [i for i in range(32) if t.mask >> i & 1 and ins.offset <= i < ins.offset + ins.size]
            taken = [i for i in enabled if t.predicate(ins, i - ins.offset)]
            backward = ins.op == "goto.b"
            if backward and not taken:
                continue
            away = [i for i in enabled if i not in taken] if backward else taken
            for lane in away:
                t.mask &= ~(1 << lane)
                waits[lane] = place[ins.jip if backward else ins.uip]
            if backward:
                pc = place[ins.uip]
            elif not t.mask & width:
                pc = place[ins.jip]
        elif ins.op == "join":
            for lane in [lane for lane, at in waits.items() if at == here]:
                t.mask |= 1 << lane & dispatched
                del waits[lane]
            if not t.mask & width:
                pc = place[ins.jip]
        elif ins.op == "call":
            at = ins.dst.number * GRF_BYTES[t.state.family] + 4 * ins.dst.sub
            t.state.grf[at : at + 8] = (pc * INSTRUCTION_BYTES | t.mask << 32).to_bytes(8, "little")
            pc = place[ins.jip]
        elif ins.op == "ret":
            source = ins.srcs[0]
            at = source.number * GRF_BYTES[t.state.family] + 4 * source.sub
            words = int.from_bytes(t.state.grf[at : at + 8], "little")
            pc, t.mask = (words & 0xFFFFFFFF) // INSTRUCTION_BYTES, words >> 32
        elif ins.op in ("nop", "sync"):
            pass
        else:
            step(t, ins)
    return steps
