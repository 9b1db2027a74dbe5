"""perf/tuning_database.py: the rule by numbers that were worked out by hand, and what it refuses."""

import dataclasses
import json
from pathlib import Path

import pytest
from xeflash.tune import tuned
from xeflash.tune.schedule import Schedule
from xeflash.tune.tuned import Choice, DeviceKey, Trial, Tuning

PERF = Path(__file__).parents[2] / "perf"
KEY = "flash_fwd bfloat16 d128 rows128"
A, B, C, D = (64, 64), (64, 32), (32, 64), (32, 32)


@pytest.fixture
def database(monkeypatch, tmp_path):
    """The program, with a folder of its own."""
    monkeypatch.syspath_prepend(str(PERF))
    import tuning_database

    monkeypatch.setattr(tuning_database, "DEVICES", tmp_path / "devices")
    return tuning_database


NO_CANDIDATE = Choice(7, (Trial(7, 1.0, 1.0, 1.0, 1.0),))


def choice(chosen, notes=(), **ratios):
    """The first of the ratios is the tables'."""
    return Choice(chosen, tuple(Trial(globals()[name], 1 / x, x, x, x) for name, x in ratios.items()))


def tuning(units=160, arch="bmg", schedule=None, **choices):
    found = {KEY if key == "key" else key: value for key, value in choices.items()}
    device = DeviceKey(arch, "20.1.4", units, 12)
    return Tuning(device, "Arc B580", "1.2", "0.1.0", tuned.tables_hash(), choices=found, schedule=schedule or {})


def test_times_count_relative_to_the_best_of_their_submission(database):
    # B is best of the second. Sums: A 2 + 1.25 = 3.25, B 1.6 + 1 = 2.6, C 1 + 2.5 = 3.5
    first, second = choice(C, A=1, B=1.25, C=2), choice(B, A=1, B=1.25, C=0.5)
    assert [database.best([x]) for x in (first, second)] == [C, B]
    assert database.best([first, second]) == database.best([second, first]) == B


def test_the_best_may_be_one_that_others_did_not_try(database):
    # Without D, B is ahead of C by 1.6 + 1 to 1 + 2. As D takes half of C's time, it is 3.2 + 1 to 2 + 2.
    second = choice(B, A=1, B=1.25, C=0.625)
    assert database.best([choice(C, A=1, B=1.25, C=2), second]) == B
    assert database.best([choice(D, A=1, B=1.25, C=2, D=4), second]) == C


def test_a_tie_is_won_by_the_tables_and_then_by_the_earlier_one(database):
    assert database.best([choice(B, A=1, B=1.25), choice(A, A=1, B=0.8)]) == A  # 1.25 + 1 and 1 + 1.25
    assert database.best([choice(C, A=1, B=2, C=2)]) == B
    rounded = [choice(B, A=1, B=1.2), choice(A, A=1, B=1 / 1.3), choice(B, A=1, B=1.1)]
    assert database.best(rounded) == A  # 1.2 + 1 + 1.1 and 1 + 1.3 + 1, which floats add up to different sums


def test_without_a_common_candidate_the_tables_stay(database):
    assert database.best([choice(B, A=1, B=2), choice(C, A=1, C=2)]) == A
    untimed = Choice(C, (Trial(A, note="died"), Trial(C, 1.0, 2.0, 2.0, 2.0)))
    assert database.best([choice(B, A=1, B=2), untimed]) == A


def test_what_nobody_chose_over_the_tables_is_noise(database):
    assert database.best([choice(A, A=1, B=1.01)]) == A
    assert database.best([choice(A, A=1, B=1.01), choice(A, A=1, B=1.02)]) == A


def saved(tmp_path, *tunings, **report):
    """Files of these tunings, as `xeflash tune --json` writes them."""
    paths = [tmp_path / f"{number}.json" for number in range(len(tunings))]
    for path, one in zip(paths, tunings, strict=True):
        path.write_text(json.dumps({"complete": True, "tuning": json.loads(one.to_json()), **report}))
    return paths


def test_files_are_of_devices_and_of_architectures(database, tmp_path, capsys):
    numbers = {"merge_keys": Choice(64, (Trial(32, 1.0, 1.0), Trial(64, 0.5, 2.0)))}
    small = tuning(64, key=choice(B, A=1, B=1.25, C=0.5), z=choice(B, A=1, B=2), schedule=numbers)
    large = tuning(160, key=choice(C, A=1, B=1.25, C=2), a=choice(A, A=1, B=0.5))
    paths = saved(tmp_path, small, large, tuning(448, "pvc", key=choice(A, A=1, B=0.5)))
    assert database.merge(paths, check=True) == 1 and not database.DEVICES.exists()
    assert database.merge(paths, check=False) == 0
    found = {path.name: json.loads(path.read_text()) for path in database.DEVICES.iterdir()}
    assert {name: (x["choices"], x["schedule"]) for name, x in found.items()} == {
        "bmg-64.json": ({KEY: [*B], "z": [*B]}, {"merge_keys": 64}),
        "bmg-160.json": ({KEY: [*C]}, {}),
        "bmg.json": ({KEY: [*B], "z": [*B]}, {"merge_keys": 64}),
    }
    assert (database.DEVICES / "bmg.json").read_text() == (
        '{\n "from": ["Arc B580, driver 1.2", "Arc B580, driver 1.2"],\n'
        f' "choices": {{\n  "{KEY}": [64, 32],\n  "z": [64, 32]\n }},\n "schedule": {{\n  "merge_keys": 64\n }}\n}}\n'
    )
    capsys.readouterr()
    assert database.merge(paths[::-1], check=True) == 0  # the order is no matter
    assert capsys.readouterr().out == ""
    assert database.merge(paths[1:], check=False) == 0  # what no submission gives any more is removed
    assert sorted(path.name for path in database.DEVICES.iterdir()) == ["bmg-160.json", "bmg.json"]
    assert f"{database.DEVICES / 'bmg-64.json'}: removed\n" in capsys.readouterr().out


def test_the_package_reads_what_is_written(database, tmp_path, monkeypatch):
    numbers = {"merge_keys": Choice(64, (Trial(32, 1.0, 1.0), Trial(64, 0.5, 2.0)))}
    assert database.merge(saved(tmp_path, tuning(key=choice(B, A=1, B=2), schedule=numbers)), check=False) == 0
    monkeypatch.setattr(tuned, "_DEVICES", database.DEVICES)
    monkeypatch.setattr(tuned, "_DATABASE", frozenset(path.name for path in database.DEVICES.iterdir()))
    monkeypatch.delenv("XEFLASH_TUNED", raising=False)
    (found,) = tuned._look_up("bmg", "", "", lambda *_: None)
    assert (found.level.name, found.choices, found.schedule) == ("architecture", {KEY: B}, {"merge_keys": 64})


def test_files_of_the_package_are_of_known_numbers():
    names = {field.name for field in dataclasses.fields(Schedule)}
    for path in (Path(tuned.__file__).parent / "devices").glob("*.json"):
        found = json.loads(path.read_text())
        assert set(found) == {"from", "choices", "schedule"} and set(found["schedule"]) <= names
        assert all(len(blocks) == 2 for blocks in found["choices"].values())


GOOD = tuning(key=choice(B, A=1, B=2))
WRONG = Choice(B, (Trial(A, 1.0, 1.0), Trial(B, 0.5, 2.0, note="error 0.2, allowed 0.1")))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"by": "counts"}, "by must be times, as counts are no measurement, got counts"),
        ({"tables": "0123"}, f"tables must be {tuned.tables_hash()}, those of this checkout, got 0123"),
        ({"choices": {KEY: WRONG}}, "(64, 32) must have been timed without a fault, got error 0.2, allowed 0.1"),
        ({"choices": {KEY: choice(C, A=1, B=2)}}, "(32, 64) must have been timed without a fault, got no trial of it"),
        ({"choices": {KEY: Choice(A, (Trial(A),))}}, "(64, 64) must have been timed without a fault, got no time"),
        ({"choices": {KEY: Choice(A)}}, "(64, 64) must have been timed without a fault, got no trial of it"),
        (
            {"device": DeviceKey("../bmg", "", 1, 1)},
            "device.arch must be one of pvc, bmg, dg2, or a CPU's, got '../bmg'",
        ),
        ({"schedule": {"merge_keys": NO_CANDIDATE}}, "merge_keys: the choice 7 must be one of bmg's candidates"),
        ({"schedule": {"keys": NO_CANDIDATE}}, "keys: the choice 7 must be one of bmg's candidates"),
    ],
)
def test_a_tuning_that_has_no_place_is_refused(database, tmp_path, capsys, changed, message):
    bad = saved(tmp_path, GOOD, dataclasses.replace(GOOD, **changed))
    assert database.merge(bad, check=False) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"merge: {bad[1]}: ") and said.endswith(f"{message}\n") and said.count("\n") == 1
    assert not database.DEVICES.exists()


@pytest.mark.parametrize("text", ["", "{}", "[]", "1", '{"tuning": {}}', '{"tuning": []}', '"tuning"', "[" * 100_000])
def test_a_broken_file_is_refused(database, tmp_path, capsys, text):
    (path,) = saved(tmp_path, GOOD)
    path.write_text(text)
    assert database.merge([path, tmp_path / "none.json"], check=False) == 1
    lines = capsys.readouterr().err.splitlines()
    told = "it must be a file of xeflash tune --json or of xeflash report --tune: "
    assert [line.partition(told)[0] for line in lines] == [f"merge: {x}: " for x in (path, tmp_path / "none.json")]


def test_the_same_tuning_counts_once(database, tmp_path, capsys):
    first, second = saved(tmp_path, GOOD, GOOD)
    for paths in ([first, second], [first, first]):
        assert database.merge(paths, check=False) == 1
        assert capsys.readouterr().err == f"merge: {paths[1]}: it must be another tuning than that of {first}\n"
    assert not database.DEVICES.exists()


CARD = {"name": "prefill bf16", "status": "ok", "note": "", "ms": 10.0, "tflops": 80.0, "gbytes_per_s": 100.0}
DEVICE = {"name": "Intel(R) Arc(TM) B580 Graphics", "compute_units": 160}
REPORT = {
    "report": 1,
    "valid": True,
    "doubts": [],
    "device": DEVICE,
    "card": {"cases": [CARD]},
    "selftest": {"cases": []},
}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"valid": False, "doubts": ["selftest: bf16: wrong: error"]},
            "must be valid, got: selftest: bf16: wrong: error",
        ),
        ({"valid": None}, "the report must be valid, got: "),
        (
            {"card": {"cases": [{**CARD, "tflops": 117.0}]}},
            "got 117.0 TFLOP/s and 100.0 GB/s: above the peak of 116.7 TFLOP/s",
        ),
        ({"selftest": {"cases": [{**CARD, "gbytes_per_s": 457.0, "ms": 1000.0}]}}, "got 80.0 TFLOP/s and 457.0 GB/s"),
        ({"device": 3}, "it must be a file of xeflash tune"),
    ],
)
def test_a_report_that_cannot_be_believed_is_refused(database, tmp_path, capsys, changed, message):
    assert database.merge(saved(tmp_path, GOOD, **REPORT), check=False) == 0
    before = {path: path.read_bytes() for path in database.DEVICES.iterdir()}
    assert len(before) == 2
    assert database.merge(saved(tmp_path, tuning(key=choice(C, A=1, C=2)), **{**REPORT, **changed}), check=False) == 1
    assert message in capsys.readouterr().err
    assert {path: path.read_bytes() for path in database.DEVICES.iterdir()} == before


def test_no_file_is_no_submission(database, monkeypatch, capsys):
    monkeypatch.setattr("sys.argv", ["tuning_database.py", "merge"])
    with pytest.raises(SystemExit) as ended:
        database.main()
    assert ended.value.code == 2 and "FILE" in capsys.readouterr().err
