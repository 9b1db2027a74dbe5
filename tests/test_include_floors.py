"""The files of kernels/ and python/host are floors: what a file includes is in its own folder or row, or further down."""

import re
from fnmatch import fnmatch
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
KERNELS, HOST = ROOT / "kernels", ROOT / "python" / "host"
INCLUDE = re.compile(r'^#include "(.+)"', re.MULTILINE)


def table(path: Path, head: str) -> list[list[str]]:
    """The names in the first column, from the lowest row on."""
    rows = path.read_text().split(head)[1].split("\n\n")[0].splitlines()[2:]
    return [re.findall(r"`(.+?)`", row.split("|")[1]) for row in reversed(rows)]


FLOORS = table(KERNELS / "README.md", "| floors, from the top |")
OF_BACKENDS = table(KERNELS / "README.md", "| floors of `cpu` and `xe`, from the top |")
BACKENDS, PARAMETERS = 2, 1
OF_HOST = table(ROOT / ".github" / "CONTRIBUTING.md", "| folders of `python/host`, from the top |")


def folder(name: str) -> str:
    return name.rpartition("/")[0]


def stem(name: str) -> str:
    return Path(name).stem


def room(name: str) -> str:
    """The folder of a file of python/host, or the file that is in none."""
    return name.split("/")[1].removesuffix(".cpp")


def floor(name: str, floors: list[list[str]] = FLOORS) -> int:
    """The lowest row that names a file of kernels/; `*` is any name in a folder."""
    same = (i for i, row in enumerate(floors) for p in row if folder(p) == folder(name) and fnmatch(name, p))
    return next(same)


def includes_of(root: Path) -> dict[str, list[str]]:
    files = [path for path in root.rglob("*.[ch]pp") if "libc" not in path.parts]
    return {path.relative_to(root).as_posix(): INCLUDE.findall(path.read_text()) for path in files}


OURS = includes_of(KERNELS)
THEIRS = {f"host/{name}": others for name, others in includes_of(HOST).items()}


def test_tables_name_every_file_and_no_other():
    assert len(FLOORS) == 6 and all(floor(name) >= 0 for name in OURS)
    for pattern in (pattern for row in FLOORS for pattern in row):
        assert any(fnmatch(name, pattern) for name in OURS), pattern
    backends = {stem(name) for name in OURS if folder(name) in ("cpu", "xe")}
    assert sorted(backends) == sorted(name for row in OF_BACKENDS for name in row)
    assert {room(name) for name in THEIRS} == {name for row in OF_HOST for name in row}


def test_kernels_include_nothing_above_them():
    found = [(name, other) for name, others in OURS.items() for other in others]
    assert len(found) > 150 and all(other in OURS for _, other in found)
    wrong = [
        x for x in found if floor(x[1]) > floor(x[0]) or (floor(x[1]) == floor(x[0]) and len({*map(folder, x)}) > 1)
    ]
    assert wrong == []
    # Words are what others know of backends.
    backends = [x for x in found if floor(x[1]) == BACKENDS]
    assert {folder(name) for name, _ in backends} <= {"cpu", "xe", "products", "tile"}


def test_a_backend_includes_what_is_below():
    floors = {name: i for i, row in enumerate(OF_BACKENDS) for name in row}
    inside = [
        (a, b) for a, others in OURS.items() for b in others if folder(a) == folder(b) and folder(a) in ("cpu", "xe")
    ]
    assert len(inside) > 50
    assert [x for x in inside if floors[stem(x[1])] >= floors[stem(x[0])]] == []


def test_the_extension_includes_nothing_above_it():
    floors = {name: i for i, row in enumerate(OF_HOST) for name in row}
    found = [(name, other) for name, others in THEIRS.items() for other in others if other.startswith("host/")]
    assert len(found) > 100
    rooms = {(room(name), room(other)) for name, other in found}
    assert [x for x in rooms if x[0] != x[1] and floors[x[1]] >= floors[x[0]]] == []
    included = {other for others in THEIRS.values() for other in others if not other.startswith("host/")}
    assert included and all(floor(other) <= PARAMETERS for other in included)


def test_headers_include_each_other_in_no_circle():
    for files in (OURS, {name: others for name, others in THEIRS.items() if name.endswith(".hpp")}):
        TopologicalSorter(files).prepare()
