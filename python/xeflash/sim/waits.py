"""Instructions that a thread executes, and its waits, as far as the machine code tells them.

A listing (check=listing) says how often each instruction ran. The main loop are those that ran at least half as often
as the most frequent dpas (or, where there is none, instruction): branches that are rarely taken are not among them.

Waits are those of one thread that is alone on its vector engine: an instruction starts one clock after the one before
it, or when what its scoreboard annotation names is done. The latencies are those by which Intel's compiler schedules
(IGC's LatencyTable), not measurements; other threads fill such gaps. Their names are those of Intel's stall sampling:

Dist/Acc  a register that an in-order pipe writes: "F@2", the second last instruction of the float pipe
SBID      a token of an instruction that ends out of order, and what it is: "$3.dst", its result; "$3.src", that its
          operands were read
Sync      a barrier or a fence
Control   a branch
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Entry = tuple[int, int, str, str]  # address, how often it ran, class, text

# Classes of instructions, as people read them, and as records name them.
CLASSES = (
    ("dpas", "dpas"),
    ("math", "math"),
    ("moves", "moves"),
    ("float ALU", "float_alu"),
    ("integer ALU", "integer_alu"),
    ("control", "control"),
    ("sync, nop", "sync"),
    ("sends", "sends"),
)

# Clocks from the start of an instruction to its result, by lanes: up to 8, 16, 32.
_ALU, _MATH = {8: 10, 16: 11, 32: 13}, {8: 17, 16: 21, 32: 29}
_DPAS = {"pvc": 29, "bmg": 33, "dg2": 32}
_SLM, _L1, _FENCE, _BARRIER, _BRANCH = 28, 45, 35, 30, 23
_READ = 12  # clocks until a message has read its operands


@dataclass
class Waits:
    """Clocks of one pass through a main loop, with the longest waits by address."""

    clocks: int = 0
    waiting: Counter[str] = field(default_factory=Counter)
    at: Counter[int] = field(default_factory=Counter)
    in_flight: int = 0  # most messages at the same time


def main_loop(listing: Sequence[Entry]) -> list[Entry]:
    """Returns the instructions of the main loop, in the order of their addresses."""
    counts = [count for _, count, kind, _ in listing if kind == "dpas"] or [count for _, count, _, _ in listing]
    top = max(counts, default=0)
    return [entry for entry in listing if 2 * entry[1] >= top]


def mix(listing: Iterable[Entry]) -> Counter[str]:
    """Counts how often instructions of each class ran."""
    found: Counter[str] = Counter()
    for _, count, kind, _ in listing:
        found[kind] += count
    return found


def _lanes(text: str) -> int:
    width = re.search(r"\((\d+)\|M\d+\)", text)
    return 8 if not width else 32 if int(width[1]) > 16 else 16 if int(width[1]) > 8 else 8


def _pipe(kind: str, text: str) -> str:
    """Returns the in-order pipe of an instruction, or "" if it has none."""
    if kind == "math":
        return "M"
    if kind in ("dpas", "sends", "sync", "control"):
        return ""
    result = re.search(r"<\d+>:(\w+)", text)
    if result and result[1] in ("q", "uq", "df"):
        return "L"
    return "F" if result and result[1] in ("f", "hf", "bf") else "I"


def _latency(arch: str, kind: str, text: str) -> int:
    if kind == "dpas":
        return _DPAS[arch]
    if kind == "sends":
        return _FENCE if "fence" in text else _BARRIER if ".gtwy" in text else _SLM if "send.slm" in text else _L1
    return _MATH[_lanes(text)] if kind == "math" else _ALU[_lanes(text)]


def _tokens(text: str) -> list[tuple[int, str]]:
    """Returns the tokens that an instruction waits for, and for what."""
    found = [(int(token), mode) for token, mode in re.findall(r"\$(\d+)\.(dst|src)", text)]
    if every := re.match(r"sync\.all(wr|rd) 0x([0-9a-f]+)", text):
        mask, mode = int(every[2], 16), "dst" if every[1] == "wr" else "src"
        found += [(bit, mode) for bit in range(32) if mask >> bit & 1]
    return found


class _Thread:
    """The state of one thread."""

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.now = 0
        self.done: dict[str, list[int]] = {pipe: [] for pipe in "FILM"}  # when instructions of a pipe end
        # When its operands were read, its result is there; what it is.
        self.token: dict[int, tuple[int, int, str]] = {}
        self.flying: list[int] = []

    def step(self, entry: Entry, waits: Waits) -> None:
        """Starts an instruction, and records what it waits for."""
        address, _, kind, text = entry
        pipe, ready, why = _pipe(kind, text), self.now, ""
        for name, distance in re.findall(r"[{,]([AFILM]?)@(\d)", text):
            for other in "FILM" if name == "A" else name or pipe or "FILM":
                ends = self.done[other][-int(distance) :]
                if len(ends) == int(distance) and ends[0] > ready:
                    ready, why = ends[0], "Dist/Acc"
        for token, mode in _tokens(text):
            read, there, what = self.token.get(token, (0, 0, ""))
            if (until := there if mode == "dst" else read) > ready:
                ready, why = until, f"SBID of {what}"
        if text.lstrip("(W) ").startswith("sync.bar"):
            ready, why = max(ready, self.now + _BARRIER), "Sync"
        if ready > self.now:
            waits.waiting[why] += ready - self.now
            waits.at[address] += ready - self.now
        lanes = 2 if _lanes(text) == 32 else 1
        end = ready + _latency(self.arch, kind, text)
        if kind == "control":
            waits.waiting["Control"] += _BRANCH
            waits.at[address] += _BRANCH
            lanes += _BRANCH
        if pipe:
            self.done[pipe].append(end)
        if own := re.search(r"\$(\d+)(?![\d.])", text):
            what = "shared memory" if ".slm" in text else "messages" if kind == "sends" else kind
            self.token[int(own[1])] = (ready + _READ, end, what)
        self.now = ready + lanes
        if kind == "sends" and ".gtwy" not in text:
            self.flying = [until for until in self.flying if until > self.now] + [end]
            waits.in_flight = max(waits.in_flight, len(self.flying))


def waits_of(arch: str, loop: Sequence[Entry]) -> Waits:
    """Returns the waits of one thread in a pass through a loop, once it has gone through it before."""
    thread = _Thread(arch)
    for entry in loop:
        thread.step(entry, Waits())
    waits, begin = Waits(), thread.now
    for entry in loop:
        thread.step(entry, waits)
    waits.clocks = thread.now - begin
    return waits
