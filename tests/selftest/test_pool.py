"""Processes that answer, die, hang or refuse."""

import sys
import time

import pytest
from xeflash.selftest import pool as pools
from xeflash.selftest.pool import Pool, Refused

# Answers with the name; does what some names say.
WORKER = """
import json, os, signal, sys, time
print(json.dumps({"on_gpu": False}), flush=True)
for line in sys.stdin:
    name = json.loads(line)["name"]
    if name.startswith("crash"):
        os.kill(os.getpid(), signal.SIGSEGV)
    if name.startswith("exit"):
        sys.exit("the device is lost")
    if name.startswith("hang"):
        time.sleep(100)
    print(json.dumps({"status": "ok", "note": name, "pid": os.getpid()}), flush=True)
"""


def pool_of(program, jobs=2, seconds=20.0):
    return Pool([sys.executable, "-c", program], jobs, seconds)


def run(pool, names):
    answers = {}
    pool.run(
        [{"name": name} for name in names], pool.jobs, lambda request, answer: answers.update({request["name"]: answer})
    )
    return answers


@pytest.fixture
def ended():
    made = []
    yield made.append
    for pool in made:
        pool.end()


def test_workers_share_the_requests(ended):
    pool = pool_of(WORKER)
    ended(pool)
    answers = run(pool, [str(i) for i in range(40)])
    assert all(answer["note"] == name for name, answer in answers.items()) and len(answers) == 40
    assert 1 <= len({answer["pid"] for answer in answers.values()}) <= 2


def test_one_that_dies_or_hangs_is_a_result_and_the_others_run(ended):
    pool = pool_of(WORKER, jobs=1, seconds=1.0)
    ended(pool)
    answers = run(pool, ["a", "crash", "b", "exit", "hang", "c"])
    assert [answers[name]["status"] for name in "abc"] == ["ok"] * 3
    assert "signal 11" in answers["crash"]["note"]
    assert answers["exit"]["note"] == "exit 1: the device is lost"
    assert "no answer within" in answers["hang"]["note"]


def test_a_device_that_kills_everything_is_given_up(ended):
    pool = pool_of(WORKER, jobs=1)
    ended(pool)
    answers = run(pool, [f"crash {i}" for i in range(20)])
    states = [answer["status"] for answer in answers.values()]
    assert states.count("died") == pools._MOST_DEATHS and states.count("not run") == 20 - pools._MOST_DEATHS


@pytest.mark.parametrize(
    ("program", "why"),
    [('print(\'{"refused": "no such device"}\')', "no such device"), ("raise SystemExit('broken')", "exit 1: broken")],
)
def test_a_device_that_cannot_be_used_is_refused(program, why):
    with pytest.raises(Refused, match=why):
        pool_of(program)


def test_end_ends_even_what_hangs(ended):
    pool = pool_of(WORKER)
    process = pool._idle[0]._process
    pool.end()
    deadline = time.monotonic() + 5
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert process.poll() is not None


def test_no_case_is_given_to_a_device_whose_process_cannot_be_ended(ended, monkeypatch):
    pool = pool_of(WORKER, jobs=1, seconds=0.5)
    ended(pool)
    monkeypatch.setattr(pools, "_SECONDS_TO_END", 0)
    monkeypatch.setattr(pool._idle[0]._process, "kill", lambda: None)  # as if its driver held it
    process = pool._idle[0]._process
    answers = run(pool, ["a", "hang", "b"])
    assert answers["hang"]["note"] == "no answer within 0.5 s, and the process cannot be ended"
    assert answers["b"]["status"] == "not run"
    process.send_signal(9)
    process.wait()


def test_a_case_begins_before_its_worker_has_it(ended):
    pool = pool_of(WORKER, jobs=1)
    ended(pool)
    seen = []
    pool.run([{"name": "a"}, {"name": "b"}], 1, lambda request, _: None, lambda request: seen.append(request["name"]))
    assert seen == ["a", "b"]
