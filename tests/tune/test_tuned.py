"""Files of tunings: who is asked first, what is skipped, and what stays whole."""

import dataclasses
import importlib
import json
import os
import re
import resource
import subprocess
import sys
import warnings

import pytest
from xeflash import _core
from xeflash.bench.cases import Case
from xeflash.bench.shares import shares_here
from xeflash.runtime import warn
from xeflash.tune import cpu, table, tuned
from xeflash.tune.desc import Desc
from xeflash.tune.tuned import Choice, Level, Trial

provide = importlib.import_module("xeflash.jit.provide")  # the package has the function under this name

TABLE, OTHER, THIRD = (64, 96), (32, 96), (64, 48)
CPU = next(facts for facts in _core.devices() if facts["type"] == "cpu")
HERE = (CPU["arch"], CPU["name"], CPU["driver"])
NAMED = {"device": CPU["name"], "driver": CPU["driver"]}


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XEFLASH_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("XEFLASH_TUNED", raising=False)
    monkeypatch.setattr(warn, "_said", set())
    monkeypatch.setattr(tuned, "_DATABASE", frozenset())
    monkeypatch.setattr(cpu, "candidates", lambda _: (TABLE, OTHER, THIRD))
    tuned.forget()
    yield
    tuned.forget()


def desc_of(**changes):
    return Desc(**{"algorithm": "flash_fwd", "arch": CPU["arch"], "dtype": "float32"} | DIMS | NAMED | changes)


DIMS = {"head_dim": 64, "head_dim_v": 64, "rows": 128}


def tuning(blocks=OTHER, schedule=None, **changes):
    trials = (Trial(TABLE, 2.0), Trial(blocks, 1.0, 2.0, 1.9, 2.1))
    numbers = {name: Choice(value) for name, value in (schedule or {}).items()}
    made = tuned.new_tuning(*HERE)
    return dataclasses.replace(
        made, choices={tuned.key_of(desc_of()): Choice(blocks, trials)}, schedule=numbers, **changes
    )


def chosen(desc=None):
    tuned.forget()
    config = table.pick(desc or desc_of())
    return config.block_q, config.block_k


def put(text):
    path = tuned.path_of(tuned.device_key(*HERE))
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    path.chmod(0o600)
    return path


def test_a_saved_choice_is_taken_where_it_was_measured():
    assert chosen() == TABLE and table.level_of(desc_of()) == Level("table")
    path = tuned.save(tuning())
    assert chosen() == OTHER and table.level_of(desc_of()) == Level("file", str(path))
    assert tuned.read(tuned.device_key(*HERE)) == tuning()
    for other in ({"head_dim_v": 128}, {"rows": 16}, {"hooks": ("SoftCap",)}, {"dropout": True}, {"dtype": "bfloat16"}):
        assert chosen(desc_of(**other)) == TABLE
    assert chosen(desc_of(cache="paged")) == OTHER  # where keys lie changes nothing
    assert chosen(desc_of(device="another")) == TABLE


def test_a_choice_that_is_no_candidate_does_not_count():
    tuned.save(tuning((16, 12)))
    assert chosen() == TABLE and table.level_of(desc_of()).name == "table"


def test_the_order_of_levels(tmp_path, monkeypatch):
    device = tuned.device_key(*HERE)
    names = {"device": f"{device.arch}-{device.units}.json", "architecture": f"{device.arch}.json"}
    monkeypatch.setattr(tuned, "_DEVICES", tmp_path)
    for level, blocks in (("architecture", THIRD), ("device", OTHER)):
        known = {"choices": {tuned.key_of(desc_of()): blocks}, "schedule": {}}
        (tmp_path / names[level]).write_text(json.dumps(known))
        monkeypatch.setattr(tuned, "_DATABASE", tuned._DATABASE | {names[level]})
        assert chosen() == blocks and table.level_of(desc_of()).name == level
    assert chosen(desc_of(device="", driver="")) == THIRD  # a device that need not be there
    tuned.save(tuning(TABLE))
    assert chosen() == TABLE and table.level_of(desc_of()).name == "file"
    monkeypatch.setenv("XEFLASH_TUNED", "off")
    assert chosen() == TABLE and table.level_of(desc_of()).name == "table"


@pytest.mark.parametrize("file", sorted(tuned._DEVICES.glob("*.json")), ids=lambda file: file.stem)
def test_the_packages_files_can_be_read(file):
    known = json.loads(file.read_text())
    assert known["from"] and set(known) == {"from", "choices", "schedule"} and known["choices"] | known["schedule"]
    for key, (rows, keys) in known["choices"].items():
        assert key.split()[0] in cpu.TABLES and rows > 0 and keys > 0
    for name, value in known["schedule"].items():
        assert value in table.schedule_candidates(file.stem.rstrip("0123456789").rstrip("-"))[name]


def test_xeflash_tuned_names_another_file(tmp_path, monkeypatch):
    tuned.save(tuning(THIRD))
    file = tmp_path / "mine.json"
    os.mkfifo(tmp_path / "pipe")
    for no_file in (tmp_path / "pipe", "/dev/zero", tmp_path, " off", file):  # reading the first two would not end
        monkeypatch.setenv("XEFLASH_TUNED", str(no_file))
        with pytest.raises(ValueError, match=f"XEFLASH_TUNED must be off or a file, got '{no_file}'"):
            chosen()
    file.write_text(tuning().to_json())
    assert chosen() == OTHER
    other = dataclasses.replace(tuned.device_key(*HERE), arch="bmg", units=160)
    file.write_text(tuning(device=other).to_json())
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it may be for another device of this machine
        assert chosen() == TABLE


def broken(**changes):
    return json.dumps(json.loads(tuning().to_json()) | changes)


def with_trial(**changes):
    found = json.loads(tuning().to_json())
    next(iter(found["choices"].values()))["trials"][0].update(changes)
    return json.dumps(found)


KEY = tuned.key_of(desc_of())
BAD = {
    "of another device": (lambda: broken(device={**device(), "units": 99}), "it is for .*-99, and this is"),
    "of another memory": (lambda: broken(device={**device(), "memory": 12}), "12GB"),
    "of another model": (lambda: broken(device={**device(), "ip": "another"}), "it is for"),
    "of another release": (lambda: broken(version="0.0.1"), "measured with xeflash 0.0.1"),
    "of other tables": (lambda: broken(tables="0" * 16), "0000000000000000"),
    "of another format": (lambda: broken(format=2), '"format" must be 1'),
    "cut off": (lambda: tuning().to_json()[:-40], "delimiter|Expecting"),
    "a broken line": (lambda: tuning().to_json().replace('"choices"', '"choices'), "Expecting|delimiter|Invalid"),
    "empty": (lambda: "", "Expecting value"),
    "a list": (lambda: "[]", '"format"'),
    "not a text": (lambda: b"\xff\xfe\0", "codec"),
    "nested": (lambda: "[" * 100000, "recursion|Expecting"),
    "an unknown field": (lambda: broken(more=1), "more"),
    "a missing field": (lambda: broken().replace('"driver"', '"drivers"'), "driver"),
    "negative blocks": (lambda: broken(choices={KEY: {"value": [-16, 96], "trials": []}}), r"got \[-16, 96\]"),
    "three blocks": (lambda: broken(choices={KEY: {"value": [16, 96, 1], "trials": []}}), "two positive"),
    "blocks that are words": (lambda: broken(choices={KEY: {"value": "ab", "trials": []}}), "got 'ab'"),
    "a choice without trials": (lambda: broken(choices={KEY: {"value": [16, 96]}}), "value and trials"),
    "a number that is none": (lambda: broken(schedule={"turn_keys": {"value": 1.5, "trials": []}}), "got 1.5"),
    "a time that is none": (lambda: with_trial(ms=float("nan")), "got nan"),
    "a ratio that no float has": (lambda: with_trial(ratio=10**400), "at most 1e\\+09, got 1000"),
    "a ratio that is a text": (lambda: with_trial(ratio="2"), "got '2'"),
}


def device():
    return json.loads(tuning().to_json())["device"]


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_skipped_named_once_and_kept(name):
    make, why = BAD[name]
    path = put(make())
    before = path.read_bytes()
    with pytest.warns(RuntimeWarning) as said:
        assert chosen() == TABLE
        assert chosen() == TABLE
    (warning,) = said
    assert str(path) in str(warning.message) and "is skipped" in str(warning.message)
    assert re.search(why, str(warning.message))
    assert path.read_bytes() == before
    tuned.save(tuning())
    assert chosen() == OTHER
    (kept,) = path.parent.glob("*.kept")
    assert kept.read_bytes() == before


def test_a_file_of_somebody_else_is_skipped():
    put(tuning().to_json()).chmod(0o666)
    with pytest.warns(RuntimeWarning, match="must be writable by its owner only"):
        assert chosen() == TABLE


def test_saving_keeps_other_choices():
    tuned.save(tuning(schedule={"turn_keys": 256}))
    other = dataclasses.replace(tuning(), choices={"another": Choice(THIRD)}, schedule={"merge_keys": Choice(8)})
    tuned.save(other)
    found = tuned.read(tuned.device_key(*HERE))
    assert {name: choice.value for name, choice in found.choices.items()} == {KEY: OTHER, "another": THIRD}
    assert {name: choice.value for name, choice in found.schedule.items()} == {"turn_keys": 256, "merge_keys": 8}
    tuned.save(tuning(THIRD))
    assert chosen() == THIRD


SAVE = """
import dataclasses, sys
from xeflash.tune import tuned
made = tuned.new_tuning(*sys.argv[2:5])
for n in range(40):
    tuned.save(dataclasses.replace(made, choices={f"{sys.argv[1]} {n}": tuned.Choice((n + 1, 16))}))
"""


def test_two_processes_that_save_lose_nothing():
    running = [subprocess.Popen([sys.executable, "-c", SAVE, name, *HERE]) for name in "ab"]
    assert [process.wait(60) for process in running] == [0, 0]
    assert len(tuned.read(tuned.device_key(*HERE)).choices) == 80
    assert {
        path.name for path in tuned.path_of(tuned.device_key(*HERE)).parent.iterdir() if path.suffix != ".lock"
    } == {tuned.device_key(*HERE).file_name}


def test_a_full_disk_leaves_the_old_file():
    path = tuned.save(tuning())
    before = path.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            tuned.save(tuning(THIRD))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before and chosen() == OTHER
    assert sorted(one.suffix for one in path.parent.iterdir()) == [".json", ".lock"]


def test_a_folder_that_cannot_be_is_an_error_of_saving_alone(tmp_path):
    (tmp_path / "tuned").write_text("")
    with pytest.raises(NotADirectoryError):
        tuned.save(tuning())
    with pytest.warns(RuntimeWarning, match="is skipped"):
        assert chosen() == TABLE


FIRST_CALL = """
import sys
import numpy as np
import xeflash
from xeflash.tune import tuned
tuned._DATABASE = frozenset()  # it may know this device
x, opened = np.ones((1, 1, 4, 64), np.float32), []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event in ("open", "os.listdir", "os.scandir") else None)
xeflash.attention(x, x, x)
print([path for path in opened if "tune" in path])
"""


def test_a_first_call_without_a_file_looks_at_one_path():
    said = subprocess.run([sys.executable, "-c", FIRST_CALL], capture_output=True, text=True, check=True)
    assert said.stdout == "['tuned']\n"


def decode(keys):
    return Case("decode", "fp32", 1, 2, 1, 64, 1, keys, False)


def test_numbers_of_the_schedule_reach_the_extension():
    before = shares_here(decode(4096), "cpu")
    assert before.schedule_from == Level("table")
    path = tuned.save(tuning(schedule={"threads_of_unit": 2, "turn_keys": 7}))  # 7 is no candidate
    after = shares_here(decode(4096), "cpu")
    assert after.splits < before.splits and after.schedule_from == Level("file", str(path))
    assert table.schedule(*HERE) == dataclasses.replace(table.schedule_of_tables(HERE[0]), threads_of_unit=2)


def test_a_tuning_without_a_compiler_leaves_the_tables_kernels(monkeypatch):
    """A wheel's kernels are those of the tables, which a machine without a compiler has."""
    tuned.save(tuning())
    built = []

    def build(kernel, *_):
        if kernel.config.block_q == OTHER[0]:
            raise provide.NoCompiler("none")
        built.append(kernel.config)
        return b"native"

    monkeypatch.setattr(provide, "find_or_build", build)
    values = dataclasses.asdict(desc_of())
    with pytest.warns(RuntimeWarning, match="-q32, which a tuning chose, cannot be compiled here"):
        native, _, config, name = provide.provide(values, 0)
    assert (native, built) == (b"native", [config]) and config.block_q == TABLE[0] and "q64" in name
    monkeypatch.setattr(cpu, "candidates", lambda _: (OTHER, TABLE))
    with pytest.raises(provide.NoCompiler):
        provide.provide(values, 0)


def test_no_number_of_the_schedule_decides_about_gradients():
    """The order of their sums, and so their bits, must not depend on a tuning."""
    of_gradients = {
        "capture_workers",
        "capture_floats",
        "one_pass",
        "one_pass_bf16",
        "one_pass_floats",
        "backward_rows",
    }
    for arch in ("cpu-generic", "cpu-amx-bf16", "bmg", "pvc", "dg2"):
        candidates = table.schedule_candidates(arch)
        assert not set(candidates) & of_gradients
        for name, values in candidates.items():
            assert values[0] == getattr(table.schedule_of_tables(arch), name) and len(set(values)) == len(values) > 1
