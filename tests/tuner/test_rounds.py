"""Winners by times that are planted, with noise that is the same in each run."""

import random

import pytest
from xeflash.tuner import rounds

CASES = ("short", "long")


class Machine:
    """Milliseconds by candidate, or by candidate and case; some rounds are slower for all, some processes for good."""

    def __init__(self, costs, noise=0.02, seed=0, luck=0.0):
        self.costs, self.noise, self.seed, self.luck = costs, noise, seed, luck
        self.chance, self.turn, self.process = random.Random(seed), {}, 0

    def sample(self, number, case):
        turn = self.turn[number] = self.turn.get(number, 0) + 1
        drift = 1 + 0.5 * random.Random(f"{self.seed} {turn}").random()
        lucky = random.Random(f"{self.seed} {number} {self.process}").lognormvariate(0, self.luck)
        cost = self.costs[number]
        cost = cost[case] if isinstance(cost, dict) else cost
        return cost * drift * lucky * self.chance.lognormvariate(0, self.noise)

    def renew(self, numbers):
        self.process += 1


def choose(costs, **how):
    faults, machine = {}, Machine(costs, **how)
    return rounds.choose(list(range(len(costs))), faults, CASES, machine.sample, machine.renew), faults


def test_the_fastest_wins_and_the_others_are_stopped():
    choice, faults = choose([1.0, 0.8, 1.3, 0.9])
    assert choice.value == 1 and set(faults) == {2, 3}
    assert "slower than another one in each of" in faults[2]
    won = choice.trials[1]
    assert 1.2 < won.ratio < 1.3 and 1 < won.low <= won.ratio <= won.high and won.note == ""
    assert choice.trials[0].ratio == 1 and choice.trials[0].ms > 1


def test_copies_of_the_first_candidate_rarely_win():
    for luck in (0, 0.03):
        won = [choose([1.0] * 6, noise=0.05, seed=seed, luck=luck)[0].value for seed in range(300)]
        assert sum(value != 0 for value in won) <= 6
    assert all(choose([1.0, 0.85], noise=0.05, seed=seed)[0].value == 1 for seed in range(20))


def test_the_second_best_may_win():
    """The best was so in its first process alone."""
    machine = Machine([1.0, 1.0, 0.71], noise=0.05)

    def sample(number, case):
        return machine.sample(number, case) * (0.7 if number == 1 and machine.process == 0 else 1)

    faults = {}
    assert rounds.choose("abc", faults, CASES, sample, machine.renew).value == "c"
    assert faults == {1: "not faster beyond the noise"}


def test_more_turns_find_quiet_moments():
    """A call is twice as slow in two of three of its turns, as beside another program."""
    machine, busy = Machine([1.0, 0.85], noise=0.02), random.Random(5)

    def sample(number, case):
        return machine.sample(number, case) * (2 if busy.random() < 0.7 else 1)

    assert rounds.choose("ab", {}, CASES, sample, machine.renew).value == "b"


def test_what_is_faster_by_less_than_the_noise_does_not_win():
    choice, faults = choose([1.0, 0.985], noise=0.1, seed=3)
    assert choice.value == 0 and faults in ({}, {1: "not faster beyond the noise"})


def test_a_candidate_that_is_slower_in_one_case_does_not_win():
    choice, faults = choose([{"short": 1.0, "long": 1.0}, {"short": 0.5, "long": 1.2}])
    assert choice.value == 0 and faults == {1: "slower in long"}
    assert choice.trials[1].ratio > 1


@pytest.mark.parametrize("after", [0, rounds.ROUNDS])
def test_a_candidate_that_fails_is_out(after):
    """Also one that was ahead, and fails when it is to be confirmed."""
    machine, asked = Machine([1.0, 0.5, 0.9]), []

    def failing(number, case):
        asked.append(number)
        if number == 1 and asked.count(1) > 2 * rounds.PARTS * after:
            raise rounds.Failed("signal 11")
        return machine.sample(number, case)

    faults = {}
    choice = rounds.choose("abc", faults, CASES, failing, machine.renew)
    assert faults[1] == "signal 11" and choice.value != "b" and choice.trials[1].note == "signal 11"
    assert choice.trials[1].ms is None


def test_nothing_is_judged_without_the_first_candidate():
    def failing(number, case):
        raise rounds.Failed("no memory")

    with pytest.raises(rounds.Failed, match="no memory"):
        rounds.choose("ab", {}, CASES, failing, lambda numbers: None)


def test_candidates_take_turns():
    order = []

    def sample(number, case):
        order.append(number)
        return 1.0

    rounds.choose("abc", {}, ["one"], sample, lambda numbers: None)
    assert order[:9] == [0, 1, 2, 1, 2, 0, 2, 0, 1]
