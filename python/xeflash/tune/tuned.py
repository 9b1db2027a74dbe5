"""Tunings: what a measurement on a device found better than the tables, in files, and who is asked first.

A user's file of the device (`xeflash tune` writes it) comes before the package's database of such devices, which comes
before that of their architecture; what none of them knows, the tables say. XEFLASH_TUNED=off leaves the tables alone,
and XEFLASH_TUNED=FILE takes another file than the user's.

A file is for one device, one release and one state of the tables and kernels. Another one, or a broken one, is skipped
as a whole, named once, and not overwritten. A choice counts only where it is one of a kernel's candidates.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from xeflash.runtime.cache_folder import cache_folder, open_folder
from xeflash.runtime.warn import warn_once
from xeflash.tune.desc import Desc

Blocks: TypeAlias = tuple[int, int]  # block_q, block_k
Value = TypeVar("Value", Blocks, int)  # of a kernel, or of a number of the schedule

_FORMAT = 1
_MOST_BYTES = 1 << 24
_MOST = 1e9  # of a time or ratio
_DEVICES = Path(__file__).parent / "devices"
# Looked at once, when the package is imported: a first call without a file looks at one path, that of the user's file.
_DATABASE = frozenset(os.listdir(_DEVICES)) if _DEVICES.is_dir() else frozenset()


@dataclass(frozen=True)
class DeviceKey:
    """The device that a tuning is for: others have other best sizes."""

    arch: str
    ip: str  # the version of a GPU's architecture; the model of a CPU
    units: int  # vector engines of a GPU, cores of a CPU
    memory: int  # GB of a GPU; 0 of a CPU

    @property
    def file_name(self) -> str:
        """Returns the name of the device's file."""
        more = [self.ip, f"{self.memory}GB"] if self.memory else []
        return "-".join([self.arch, str(self.units), *more]) + ".json"


@dataclass(frozen=True)
class Trial(Generic[Value]):
    """A candidate and its measurement: the median of its rounds and, beside the first candidate, that of the ratios.

    A ratio is the first candidate's time, or cost, over this one's in the same round: above 1 this one is faster. `low`
    and `high` are the 10 and 90 % quantiles of the ratios. A note says why a candidate is out.
    """

    value: Value
    ms: float | None = None  # by counts: instructions
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Choice(Generic[Value]):
    """A value that was chosen, and the trials; the first of them is that of the tables."""

    value: Value
    trials: tuple[Trial[Value], ...] = ()


@dataclass(frozen=True)
class Tuning:
    """A tuning of one device: choices for keys of kernels, and for numbers of the schedule."""

    device: DeviceKey
    name: str
    driver: str
    version: str
    tables: str
    by: str = "times"  # or "counts"
    choices: Mapping[str, Choice[Blocks]] = field(default_factory=dict)
    schedule: Mapping[str, Choice[int]] = field(default_factory=dict)

    def to_json(self) -> str:
        """Returns the content of a file."""
        return json.dumps({"format": _FORMAT, **dataclasses.asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Tuning:
        """Reads the content of a file; raises ValueError for one that is broken anywhere."""
        try:
            found = json.loads(text)
            if not isinstance(found, dict) or found.pop("format", None) != _FORMAT:
                raise ValueError(f'"format" must be {_FORMAT}')
            device = DeviceKey(**found.pop("device"))
            choices = {key: _choice(key, value, _blocks) for key, value in found.pop("choices").items()}
            numbers = {key: _choice(key, value, _number) for key, value in found.pop("schedule").items()}
            tuning = cls(device, **found, choices=choices, schedule=numbers)
        except (TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"it is not a tuning: {error}") from error
        words = (device.arch, device.ip, tuning.name, tuning.driver, tuning.version, tuning.tables)
        if not all(isinstance(word, str) for word in words) or tuning.by not in ("times", "counts"):
            raise ValueError("it is not a tuning: a field has the wrong type")
        _number("units", device.units), _number("memory", device.memory)
        return tuning


class Level(NamedTuple):
    """The level that chose, "file", "device", "architecture" or "table", and the path of its file."""

    name: str
    where: str = ""


class _Found(NamedTuple):
    level: Level
    choices: Mapping[str, Blocks]
    schedule: Mapping[str, int]


def key_of(desc: Desc) -> str:
    """Returns the name of the kernels that share a choice: those that compute alike, wherever their keys lie."""
    dims = f"d{desc.head_dim}" + (f"v{desc.head_dim_v}" if desc.head_dim_v != desc.head_dim else "")
    words = [desc.algorithm, desc.dtype, dims, f"rows{desc.rows}", desc.access]
    words += [desc.mask if desc.mask != "Window" else "", *desc.hooks]
    words += [f"bias.{desc.bias}" if desc.bias else "", *(x for x in ("score_mod", "mask_mod") if getattr(desc, x))]
    words += [f"kv.{desc.cache_dtype}" if desc.cache_dtype else ""]
    words += [name for name in ("nibbles", "dropout", "packed_heads", "split_keys", "adds_up") if getattr(desc, name)]
    return " ".join(word for word in words if word)


def blocks_of(desc: Desc, candidates: tuple[Blocks, ...]) -> tuple[Blocks, Level]:
    """Returns what the first level that knows the kernel has among its candidates, else the first candidate."""
    if len(candidates) > 1:
        for found in _levels(desc.arch, desc.device, desc.driver):
            blocks = found.choices.get(key_of(desc))
            if blocks in candidates:
                return blocks, found.level
    return candidates[0], Level("table")


def numbers_of(
    arch: str, device: str, driver: str, candidates: Mapping[str, tuple[int, ...]]
) -> tuple[dict[str, int], Level]:
    """Returns the numbers of the schedule that a level has among their candidates, and the first such level."""
    numbers: dict[str, int] = {}
    level = Level("table")
    for found in reversed(_levels(arch, device, driver)):
        allowed = {name: x for name, x in found.schedule.items() if x in candidates.get(name, ())}
        numbers |= allowed
        level = found.level if allowed else level
    return numbers, level


def device_key(arch: str, name: str, driver: str) -> DeviceKey | None:
    """Returns the key of a device of this machine, or None if it is not there."""
    from xeflash import _core

    for facts in _core.devices():
        if (facts["arch"], facts["name"], facts["driver"]) == (arch, name, driver):
            if facts["type"] == "cpu":
                return DeviceKey(arch, _cpu_model(), facts["compute_units"], 0)
            return DeviceKey(arch, facts["ip_version"], facts["compute_units"], -(-facts["memory"] >> 30))
    return None


def path_of(device: DeviceKey) -> Path:
    """Returns the path of the user's file of a device."""
    return cache_folder() / "tuned" / device.file_name


def new_tuning(arch: str, name: str, driver: str, by: str = "times") -> Tuning:
    """Returns a tuning without choices of a device of this machine."""
    device = device_key(arch, name, driver)
    if device is None:
        raise ValueError(f"tune: the device must be one of this machine, got {name!r}")
    return Tuning(device, name, driver, _version(), tables_hash(), by)


def read(device: DeviceKey) -> Tuning:
    """Reads the user's file of a device; raises OSError if it cannot be had, ValueError if it is broken."""
    path = path_of(device)
    with open_folder(path.parent) as folder:
        return Tuning.from_json(folder.read(path.name, _MOST_BYTES).decode())


def why_not(tuning: Tuning, device: DeviceKey) -> str:
    """Returns why a tuning is not for a device, this release and its tables, or ""."""
    if tuning.device != device:
        return f"it is for {tuning.device.file_name[:-5]}, and this is {device.file_name[:-5]}"
    if (tuning.version, tuning.tables) != (_version(), tables_hash()):
        return (
            f"it was measured with xeflash {tuning.version} ({tuning.tables}), this is {_version()} ({tables_hash()})"
        )
    return ""


def save(tuning: Tuning) -> Path:
    """Adds a tuning to the user's file of its device, and returns the path; raises OSError if it cannot.

    What the file has of the same keys is replaced, other keys are kept. A file that look-ups skip is kept beside the
    new one, under another name.
    """
    path = path_of(tuning.device)
    with open_folder(path.parent, make=True) as folder, folder.lock(f".{path.name}.lock"):
        try:
            before = Tuning.from_json(folder.read(path.name, _MOST_BYTES).decode())
            refused = bool(why_not(before, tuning.device)) or before.by != tuning.by
        except FileNotFoundError:
            before, refused = tuning, False
        except ValueError:
            before, refused = tuning, True
        if refused:
            kept = hashlib.sha256(folder.read(path.name, _MOST_BYTES)).hexdigest()[:8]
            folder.move(path.name, f"{path.name}.{kept}.kept")
            before = tuning
        choices, numbers = {**before.choices, **tuning.choices}, {**before.schedule, **tuning.schedule}
        merged = dataclasses.replace(tuning, choices=choices, schedule=numbers)
        folder.write(path.name, merged.to_json().encode())
    forget()
    return path


def forget() -> None:
    """Forgets what was looked up; kernels and schedules that a process has stay what they are."""
    _levels.cache_clear()


@functools.cache
def tables_hash() -> str:
    """Returns a hash of all that decides about candidates and their kernels' code."""
    from xeflash import _core

    here = Path(__file__).parent
    apart = {"__init__.py", "tuned.py", "models.py", "model_config.py"}
    files = [path for path in sorted(here.glob("*.*")) if path.suffix in (".py", ".csv") and path.name not in apart]
    kernels = Path(str(_core.__file__)).parent / "kernels"
    files += [path for path in sorted(kernels.rglob("*.hpp")) if "libc" not in path.parts]
    hasher = hashlib.sha256()
    for path in files:
        hasher.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return hasher.hexdigest()[:16]


def files_of(arch: str, name: str, driver: str) -> list[tuple[Level, str]]:
    """Returns the levels that a device has, in their order, each with why it is skipped, or ""."""
    found: list[tuple[Level, str]] = []
    _look_up(arch, name, driver, lambda level, why: found.append((level, why)))
    return found


@functools.cache
def _levels(arch: str, name: str, driver: str) -> tuple[_Found, ...]:
    def say(level: Level, why: str) -> None:
        if why:
            warn_once(f"the tuning {level.where} is skipped: {why}; see: xeflash doctor, xeflash tune")

    return _look_up(arch, name, driver, say)


def _look_up(arch: str, name: str, driver: str, say: Callable[[Level, str], None]) -> tuple[_Found, ...]:
    """Returns what each level has; `say` gets each level that there is, and why it is skipped."""
    asked = os.environ.get("XEFLASH_TUNED", "")
    if asked == "off":
        return ()
    device = device_key(arch, name, driver) if name else None
    found: list[_Found] = []
    if device is not None:
        level = Level("file", asked or str(path_of(device)))
        if asked and not os.path.isfile(asked):  # a pipe has no end that a process may wait for
            raise ValueError(f"xeflash: XEFLASH_TUNED must be off or a file, got {asked!r}")
        try:
            tuning = Tuning.from_json(Path(asked).read_text()) if asked else read(device)
            why = why_not(tuning, device)
            if not (asked and tuning.device != device):  # which may be another one of this machine
                say(level, why)
            if not why:
                choices = {key: choice.value for key, choice in tuning.choices.items()}
                numbers = {key: choice.value for key, choice in tuning.schedule.items()}
                found.append(_Found(level, choices, numbers))
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            say(level, str(error))
    names = [("device", f"{arch}-{device.units}.json")] if device else []
    for of, file in (*names, ("architecture", f"{arch}.json")):
        if file in _DATABASE:
            known = json.loads((_DEVICES / file).read_text())
            level = Level(of, str(_DEVICES / file))
            say(level, "")
            choices = {key: (rows, keys) for key, (rows, keys) in known["choices"].items()}
            found.append(_Found(level, choices, known["schedule"]))
    return tuple(found)


def _choice(key: str, found: Mapping[str, Any], value: Callable[[str, Any], Value]) -> Choice[Value]:
    if set(found) != {"value", "trials"}:
        raise ValueError(f"{key!a}: it must have value and trials, got {sorted(found)}")
    trials = tuple(Trial(**{**one, "value": value(key, one["value"])}) for one in found["trials"])
    for trial in trials:
        for number in (trial.ms, trial.ratio, trial.low, trial.high):
            if not (number is None or (type(number) in (int, float) and 0 < number <= _MOST)):
                raise ValueError(f"{key!a}: a time or ratio must be positive, at most {_MOST:g}, got {number!r}")
        if not isinstance(trial.note, str):
            raise ValueError(f"{key!a}: a note must be a text, got {trial.note!r}")
    return Choice(value(key, found["value"]), trials)


def _number(key: str, found: Any) -> int:
    if type(found) is not int or found < 0:
        raise ValueError(f"{key!a}: a number must be 0 or more, got {found!r}")
    return found


def _blocks(key: str, found: Any) -> Blocks:
    if not (isinstance(found, list) and len(found) == 2 and all(type(x) is int and x > 0 for x in found)):
        raise ValueError(f"{key!a}: blocks must be two positive numbers, got {found!r}")
    return found[0], found[1]


@functools.cache
def _version() -> str:
    return importlib.metadata.version("xeflash")


@functools.cache
def _cpu_model() -> str:
    """Returns vendor, family and model of this machine's CPU."""
    lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    values = dict(line.replace("\t", "").partition(":")[::2] for line in lines)
    return "-".join(values.get(name, "").strip() for name in ("vendor_id", "cpu family", "model"))
