"""The way through the rows, with costs that are planted."""

import itertools
import random

import pytest
from planted import TUNING
from xeflash import tune
from xeflash.jit.headers import NoCompiler
from xeflash.tune import table
from xeflash.tune.table import candidates
from xeflash.tune.tuned import Choice, DeviceKey, Tuning, key_of
from xeflash.tuner import cases, counts, search
from xeflash.tuner.cases import CPU, GPU, PHASES, cases_of, cases_of_schedule, rows_of, shapes_of
from xeflash.tuner.rounds import Failed

UNITS = {"bmg": 160, "pvc": 448, "dg2": 512}


def rows_on(arch, dtypes=("bf16",), head_dims=(128, 64), phases=PHASES):
    sizes = CPU if arch.startswith("cpu-") else GPU
    return rows_of(cases_of(shapes_of((), head_dims), phases, dtypes, sizes), arch, UNITS.get(arch, 4))


def run(rows, chooser, tuning=TUNING):
    found, kept = search.Found(tuning, [row.key for row in rows]), []
    search.search(rows, chooser, found, lambda row: kept.append(row.key), lambda row: None)
    return found, kept


class Planted:
    """A chooser that does with each row what a list says: a place in the candidates, or an error."""

    def __init__(self, *what):
        self.what, self.texts, self.rows = iter(what), [], []

    def choose(self, row, texts):
        self.texts.append(texts)
        self.rows.append(row)
        place = next(self.what)
        if isinstance(place, Exception):
            raise place
        return Choice(row.candidates[place])


@pytest.mark.parametrize("arch", UNITS)
def test_the_best_of_planted_counts_is_found(arch, planted, monkeypatch):
    chance, costs, trials = random.Random(arch), {}, {}

    def count(desc, blocks):
        key = key_of(desc)
        trials[key] = trials.get(key, 0) + 1
        scratch = costs.get((key, blocks), 0) < 0  # the cheapest that spills
        return {"per 1000 scores": abs(costs[key, blocks]), "scratch": scratch}

    rows = rows_on(arch)
    for row in rows:
        for value in row.candidates:
            costs[row.key, value] = chance.choice([-1, 1]) * chance.uniform(50, 100)
    monkeypatch.setattr(counts, "count", count)
    found, kept = run(rows, counts.Counted(1, lambda: None), Tuning(DeviceKey(arch, "", 1, 1), *"abcd", by="counts"))
    assert kept == [row.key for row in rows] and found.left == []
    assert len(rows) > 10 and max(trials.values()) <= 6
    for row in rows:
        first = abs(costs[row.key, row.candidates[0]])
        right = {value: costs[row.key, value] for value in row.candidates if costs[row.key, value] > 0}
        best = min(right, key=right.get, default=row.candidates[0])
        worth = right and first / right[best] >= 1.02
        assert found.tuning.choices[row.key].value == (best if worth else row.candidates[0]), row.key


def test_rows_are_in_the_order_of_use(planted):
    rows = rows_on("bmg")
    said = [(row.cases[0].head_dim, row.cases[0].phase, row.cases[0].seq_q > 1) for row in rows]
    order = [x for x, _ in itertools.groupby(said)]
    assert order == [
        *((128, "prefill", True), (128, "decode", False), (128, "prefill", True)),
        *((64, "prefill", True), (64, "decode", False), (64, "prefill", True)),
        *((128, "backward", True), (64, "backward", True)),
    ]
    assert len({row.key for row in rows}) == len(rows) and all(1 <= len(row.cases) <= 2 for row in rows)
    assert {row.trained for row in rows} == {"", "flash_bwd_dq", "flash_bwd_dkv"}


def test_kernels_without_candidates_have_no_row(monkeypatch):
    monkeypatch.setattr(cases, "candidates", lambda desc: candidates(desc)[:1])
    assert rows_on("bmg") == []


def test_shapes_are_those_of_models():
    assert shapes_of(("llama-3-8b", "qwen3-8b", "sdxl"), ()) == [(32, 8, 128), (10, 10, 64), (20, 20, 64)]
    with pytest.raises(ValueError, match="--model-shapes must have one head dim .* deepseek-v3 has 192 and 128"):
        shapes_of(("deepseek-v3",), ())


def test_a_process_has_one_candidate_of_each_kernel(planted):
    """So that it serves all rows; gradients make two kernels in a call, of which one is tried."""
    rows = rows_on("bmg", head_dims=(128,))
    found, _ = run(rows, chooser := Planted(*[1] * len(rows)))
    assert len({tuple(texts) for texts in chooser.texts}) == 3
    by_row = dict(zip([row.key for row in rows], chooser.texts, strict=True))
    for row in rows:
        for place, text in enumerate(by_row[row.key]):
            told = Tuning.from_json(text).choices
            assert told[row.key].value == row.candidates[place]
            assert all(key.startswith(row.trained) for key in told) if row.trained else "bwd" not in str(told)
    assert [found.tuning.choices[row.key].value for row in rows] == [row.candidates[1] for row in rows]


def test_what_has_no_time_is_left(planted):
    rows = rows_on("bmg")
    found, kept = run(rows, Planted(0, 1, search.OutOfTime()))
    assert kept == [row.key for row in rows[:2]] and found.left == [row.key for row in rows[2:]]


def test_a_row_whose_first_candidate_fails_is_said(planted):
    rows = rows_on("bmg", head_dims=(128,), phases=("prefill", "decode"))
    found, kept = run(rows, Planted(0, Failed("the device is lost"), *[0] * len(rows)))
    assert found.failed == {rows[1].key: "the device is lost"} and found.left == []
    assert rows[1].key not in found.tuning.choices and len(found.tuning.choices) == len(rows) - 1


def schedule_of(arch):
    kernels = rows_on(arch, head_dims=(128, 64))
    decided = cases_of_schedule((32, 8, 128), PHASES, "bf16", GPU)
    return kernels, list(search.rows_of_schedule(decided, arch))


def test_without_a_compiler_the_schedule_is_tuned(planted):
    kernels, schedule = schedule_of("bmg")
    tuning = Tuning(DeviceKey("bmg", "", 160, 12), "", "", "0", "abc")
    rows = search.ordered(kernels, schedule)
    assert [row.cases[0].head_dim for row in rows].index(64) > rows.index(schedule[-1])
    found, kept = run(rows, chooser := Planted(NoCompiler("no headers"), *[1] * len(schedule)), tuning)
    assert chooser.rows[1] == search.changing(schedule[0], tuning) != schedule[0]
    assert found.no_compiler == "no headers" and set(found.left) == {row.key for row in kernels}
    assert set(kept) == {row.key for row in schedule} and found.tuning.choices == {}
    values = {row.key: row.candidates for row in schedule}
    assert all(choice.value in values[key] for key, choice in found.tuning.schedule.items())


def test_values_of_the_schedule_that_change_nothing_are_not_tried():
    _, schedule = schedule_of("bmg")
    tuning = Tuning(DeviceKey("bmg", "", 160, 12), "", "", "0", "abc")
    for row in schedule:
        some = search.changing(row, tuning)
        assert some.candidates[0] == row.candidates[0] and set(some.candidates) <= set(row.candidates)
        assert all(
            any(
                search.launches_of(case, tuning, {row.key: value})
                != search.launches_of(case, tuning, {row.key: some.candidates[0]})
                for case in some.cases
            )
            for value in some.candidates[1:]
        )
    assert any(len(search.changing(row, tuning).candidates) > 1 for row in schedule)
    idle = search.changing(search.Row("merge_keys", (32, 33), schedule[0].cases[:1]), tuning)
    assert idle.candidates == (32,) and idle.cases == ()
    assert tune.schedule is table.schedule


def test_numbers_of_the_schedule_have_what_was_chosen_before(planted):
    kernels, schedule = schedule_of("bmg")
    tuning = Tuning(DeviceKey("bmg", "", 160, 12), "", "", "0", "abc")
    rows = [kernels[0], *schedule]
    found, _ = run(rows, chooser := Planted(*[1] * len(rows)), tuning)
    last = Tuning.from_json(chooser.texts[-1][1])
    assert last.choices[kernels[0].key].value == kernels[0].candidates[1]
    assert {k: x.value for k, x in last.schedule.items()} == {k: x.value for k, x in found.tuning.schedule.items()}
