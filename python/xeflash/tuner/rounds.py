"""Candidates that are timed in rounds, in which they take turns, and what is faster by more than noise.

All candidates run some rounds; one that is slower than another in each of them is stopped. The best of the others has
to be faster beyond the noise: 10 to 90 % of its ratios lie above 1. So it has to be once more, in rounds of processes
that are new several times: memory that a process happens to get makes a kernel faster, or slower, by some percent. If
it is not, the second best may try. Where the noise is large, turns become more, as quiet moments are rare.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from xeflash.bench.stats import quantile
from xeflash.bench.timing import rotated
from xeflash.tune.tuned import Choice, Trial

_Case = TypeVar("_Case")
Sample = Callable[[int, _Case], float]  # the milliseconds of a candidate's call; raises Failed
Times = dict[int, list[list[float]]]  # of each case, by candidate and round

ROUNDS = 9
PARTS = 3  # turns of each candidate in a round; the best counts, so that all have the same quiet moments
MORE_PARTS = 9  # where that leaves what is faster by so much within the noise
_PROMISING = 1.03
FEWEST = 4  # rounds before a candidate is stopped
PROCESSES = 4  # new ones, in which a winner has to be faster again
DECIDING = 4  # rounds in each of them
STOPPED, _NOISE = "stopped", "not faster beyond the noise"
_MOST_TRIED = 2  # candidates that try to be faster again


class Failed(RuntimeError):
    """A candidate has no result; the text says why."""


def ratios(first: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> list[float]:
    """Returns first / other of each round: the geometric mean over the cases."""
    return [
        math.exp(statistics.fmean(math.log(a / b) for a, b in zip(one, two, strict=True)))
        for one, two in zip(first, other, strict=False)
    ]


def spread(found: Sequence[float]) -> tuple[float, float, float]:
    """Returns the median, and the 10 and 90 % quantiles."""
    ordered = sorted(found)
    return statistics.median(ordered), quantile(ordered, 0.1), quantile(ordered, 0.9)


def choose(
    candidates: Sequence[Any],
    faults: dict[int, str],
    cases: Sequence[_Case],
    sample: Sample[_Case],
    renew: Callable[[Sequence[int]], None],
) -> Choice[Any]:
    """Chooses by times; `faults` are of candidates that are out before, by their place, and get those that fail now.

    `renew` gives candidates new processes. Raises Failed if the first candidate does.
    """
    running = [number for number in range(len(candidates)) if number not in faults]
    times = _race(running, cases, sample, ROUNDS, faults, PARTS, stops=True)
    found = {number: (times[0], own) for number, own in times.items()}
    medians = {x: spread(ratios(*found[x]))[0] for x in times if x and x not in faults}
    winner = 0

    def judged(again: Times) -> str:
        if best in faults:
            del found[best]
            return faults[best]
        found.update({number: (again[0], again[number]) for number in (0, best)})
        return _not_faster(*found[best], cases)

    for best in sorted(medians, key=lambda x: -medians[x])[:_MOST_TRIED]:
        why, parts = _not_faster(*found[best], cases), PARTS
        if why == _NOISE and medians[best] >= _PROMISING:
            parts = MORE_PARTS
            why = judged(_race([0, best], cases, sample, ROUNDS, faults, parts))
        why = why or judged(_in_new_processes(best, cases, sample, faults, renew, parts))
        if not why:
            winner = best
            break
        faults[best] = why
    trials = [
        _trial(value, *found.get(number, ([], [])), faults.get(number, "")) for number, value in enumerate(candidates)
    ]
    return Choice(candidates[winner], tuple(trials))


def _in_new_processes(
    best: int,
    cases: Sequence[_Case],
    sample: Sample[_Case],
    faults: dict[int, str],
    renew: Callable[[Sequence[int]], None],
    parts: int,
) -> Times:
    """Times a candidate beside the first one, in several processes of each, or until it fails."""
    times = Times()
    for _ in range(PROCESSES):
        renew([0, best])
        for number, own in _race([0, best], cases, sample, DECIDING, faults, parts).items():
            times.setdefault(number, []).extend(own)
        if best in faults:
            break
    return times


def _race(
    running: Sequence[int],
    cases: Sequence[_Case],
    sample: Sample[_Case],
    rounds: int,
    faults: dict[int, str],
    parts: int,
    stops: bool = False,
) -> Times:
    """Times candidates, of which 0 is always one, in rounds; raises Failed if it fails."""
    alive, times = list(running), Times()
    for turn in range(rounds):
        taken: dict[int, list[float]] = {}
        for part in range(parts):
            for number in [x for x in rotated(alive, parts * turn + part) if x not in faults]:
                try:
                    some = [sample(number, case) for case in cases]
                    taken[number] = [min(pair) for pair in zip(some, taken.get(number, some), strict=True)]
                except Failed as error:
                    if number == 0:
                        raise
                    faults[number] = str(error)
                    for of in (taken, times):  # what failed has no time
                        of.pop(number, None)
        for number, best in taken.items():
            times.setdefault(number, []).append(best)
        alive = [number for number in alive if number not in faults]
        if stops and turn + 1 >= FEWEST:
            alive = _not_beaten(alive, times, faults)
        if len(alive) == 1:
            break
    return times


def _not_beaten(alive: list[int], times: Times, faults: dict[int, str]) -> list[int]:
    """Returns the candidates that no other one beats in each round; the first one stays, as all are beside it."""
    kept = []
    for number in alive:
        if number and any(max(ratios(times[x], times[number])) < 1 for x in alive if x != number):
            faults[number] = f"{STOPPED}: slower than another one in each of {len(times[number])} rounds"
        else:
            kept.append(number)
    return kept


def _not_faster(first: Sequence[Sequence[float]], other: Sequence[Sequence[float]], cases: Sequence[_Case]) -> str:
    """Returns why a candidate is not faster beyond the noise, which is that of all cases, or "" if it is."""
    if spread(ratios(first, other))[1] <= 1:
        return _NOISE
    for place, case in enumerate(cases):
        if spread([one[place] / two[place] for one, two in zip(first, other, strict=True)])[2] < 1:
            return f"slower in {getattr(case, 'label', case)}"
    return ""


def _trial(value: Any, first: Sequence[Sequence[float]], own: Sequence[Sequence[float]], note: str) -> Trial[Any]:
    if not own:
        return Trial(value, note=note)
    middle, low, high = spread(ratios(first, own))
    ms = math.exp(statistics.fmean(math.log(statistics.median(one)) for one in zip(*own, strict=True)))
    return Trial(value, ms, middle, low, high, note)
