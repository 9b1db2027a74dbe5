"""The simulator's folders are floors: what a file includes is in its own folder or in one further down."""

import re
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "perf" / "xesim"
FLOORS = re.findall(r"^\| `(\w+)/` \|", (FOLDER / "README.md").read_text(), re.MULTILINE)


def test_the_readme_names_every_folder():
    assert sorted(FLOORS) == sorted(path.name for path in FOLDER.iterdir() if path.is_dir())


def test_no_file_includes_a_higher_floor():
    sources = [path for path in FOLDER.glob("*/*") if path.suffix in (".hpp", ".cpp")]
    includes = [
        (path.relative_to(FOLDER), included)
        for path in sources
        for included in re.findall(r'#include "(.+)"', path.read_text())
    ]
    assert includes
    wrong = [
        f"{path} includes {included}"
        for path, included in includes
        if FLOORS.index(included.split("/")[0]) > FLOORS.index(path.parts[0])
    ]
    assert not wrong
