"""Processes that have a candidate each: what is wrong, dies or hangs is named, and never chosen."""

import dataclasses
import io
import itertools
import json

import pytest
import torch
from planted import TINY, TUNING
from xeflash.bench import forms
from xeflash.selftest.pool import Refused
from xeflash.tune.tuned import Tuning
from xeflash.tuner import worker
from xeflash.tuner.measure import Compiling, Measured
from xeflash.tuner.rounds import Failed
from xeflash.tuner.workers import Lanes, described


@pytest.fixture
def choose(row, answering, tmp_path):
    """The choice among four candidates whose processes follow a plan."""
    made = []

    def chosen(row=row, **plan):
        lanes, compiling = Lanes(answering(**plan), tmp_path, seconds=2.0), Compiling(1)
        made.extend([lanes, compiling])
        return Measured(lanes, compiling, 4, lambda: None).choose(row, [TUNING.to_json()] * len(row.candidates))

    yield chosen
    for one in made:
        one.end()


def notes(choice):
    return [trial.note for trial in choice.trials]


def test_the_fastest_of_the_processes_is_chosen(choose, row):
    choice = choose(lane2=0.5)
    assert choice.value == row.candidates[2] and notes(choice)[2] == ""


@pytest.mark.parametrize(
    ("what", "note"), [("wrong", "wrong result"), ("dies", "signal 11"), ("hangs", "no answer within 2 s")]
)
def test_a_candidate_that_is_wrong_dies_or_hangs_is_named(choose, row, what, note):
    choice = choose(lane1=what, lane2=0.5)
    assert choice.value == row.candidates[2] and note in notes(choice)[1] and choice.trials[1].ms is None
    with pytest.raises(Failed, match=note):
        choose(lane0=what)


def test_a_case_that_has_no_room_is_no_fault_of_a_candidate(choose):
    with pytest.raises(Failed, match="MemoryError: needs about 5 GB"):
        choose(lane1="large")


def test_a_candidate_that_hangs_while_it_is_timed_is_named(choose, row):
    choice = choose(lane1="late", lane2=0.5)
    assert choice.value == row.candidates[2] and "no answer within" in notes(choice)[1]


def test_a_candidate_that_changes_the_bits_of_gradients_is_out(choose, row):
    trained = dataclasses.replace(row, cases=(dataclasses.replace(TINY, phase="backward"),))
    choice = choose(trained, lane0="bits 1", lane1="bits 2", lane2="bits 1", lane3=0.5)
    out = "changes the order of sums: gradients have other bits"
    assert [out in note for note in notes(choice)] == [False, True, False, True]


def test_processes_end_where_their_candidates_change(answering, tmp_path):
    lanes = Lanes(answering(), tmp_path)
    try:
        lanes.use({0: "a", 1: "b"})
        first = [lanes.ask(x, {"do": "check"}) and lanes._workers[x]._process.pid for x in (0, 1)]
        assert [(tmp_path / f"{x}.json").read_text() for x in (0, 1)] == ["a", "b"]
        lanes.use({0: "a", 1: "c"})
        then = [lanes.ask(x, {"do": "check"}) and lanes._workers[x]._process.pid for x in (0, 1)]
        assert first[0] == then[0] and first[1] != then[1] and (tmp_path / "1.json").read_text() == "c"
    finally:
        lanes.end()


def served(*requests):
    """The answers of the real worker, in this process."""
    answers = io.StringIO()
    worker._prepared.cache_clear()
    asked = io.StringIO("".join(json.dumps(one) + "\n" for one in requests))
    worker.worker.serve("cpu", asked, answers, worker.respond)
    return [json.loads(line) for line in answers.getvalue().splitlines()[1:]]


def request(do, **changed):
    return {"do": do, "case": dataclasses.asdict(dataclasses.replace(TINY, **changed))}


def test_the_worker_checks_and_times_calls():
    decode = {"phase": "decode", "seq_q": 1, "seq_k": 127, "causal": False}
    about, ran, checked, timed, trained, other, none = served(
        {"do": "describe"},
        request("run"),
        request("check"),
        request("time", **decode),
        request("check", phase="backward"),
        request("check", phase="backward", causal=False),
        request("time", batch=1 << 40),
    )
    assert Tuning.from_json(about["tuning"]).device.arch.startswith("cpu-") and about["torch"] == "cpu"
    assert (
        ran == {"status": "ok"}
        and checked == {"status": "ok", "bits": ""}
        and timed["status"] == "ok"
        and timed["ms"] > 0
    )
    assert trained == served(request("check", phase="backward"))[0]
    assert len(trained["bits"]) == 64 and trained["bits"] != other["bits"]
    assert none["status"] == "no memory" and "MemoryError: needs about" in none["note"]


def test_the_worker_sees_a_wrong_result(monkeypatch):
    ours = forms.our_form
    monkeypatch.setattr(forms, "our_form", lambda *a: lambda: ours(*a)() + torch.tensor(0.01))
    (checked,) = served(request("check"))
    assert checked["status"] == "wrong" and "error 1.00e-02" in checked["note"]


def test_keys_that_are_read_take_turns():
    """More bytes than the last cache holds, so that each call reads memory."""
    case = dataclasses.replace(TINY, phase="decode", seq_q=1, seq_k=4 << 10, causal=False)
    made = worker.Prepared(case, "cpu", worker.Numbers("cpu"))._inputs
    places = sorted((x.data_ptr(), x.data_ptr() + x.nbytes) for some in made for x in some[:3])
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(places))
    assert len(made) > 1 and sum(x.k.nbytes + x.v.nbytes for x in made) >= 2 * (worker.last_level_cache() or 0)


def test_a_device_that_cannot_be_used_is_refused(answering):
    with pytest.raises(Refused, match="exit 1"):
        described(answering()[:1] + ["-c", "raise SystemExit('broken')"])
