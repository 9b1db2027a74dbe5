"""CONTRIBUTING's table leads from each feature to files that exist, and from each kernel, host file and test to a feature."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TABLE = (ROOT / ".github/CONTRIBUTING.md").read_text().split("## From a feature to its files")[1].split("\n## ")[0]
HEAD, _, *ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*", TABLE, re.M)]
FOLDERS = [ROOT / cell.strip("`") for cell in HEAD[1:]]
NAMED = {
    folder / name
    for row in ROWS
    for folder, cell in zip(FOLDERS, row[1:], strict=True)
    for name in re.findall("`(.*?)`", cell)
}
IN_A_ROW = ("kernels/*.hpp", "kernels/attention/*.hpp", "kernels/products/*.hpp", "python/host/**/*.cpp")
IN_A_ROW += ("tests/attention/test_*.py", "tests/products/test_*.py")


def test_every_named_file_exists():
    assert len(ROWS) > 30
    assert [str(path) for path in sorted(NAMED) if not path.is_file()] == []


@pytest.mark.parametrize("pattern", IN_A_ROW)
def test_every_file_is_in_a_row(pattern):
    found = set(ROOT.glob(pattern))
    assert found
    assert sorted(path.name for path in found - NAMED) == [], "give them a row of the table in .github/CONTRIBUTING.md"


@pytest.mark.parametrize("folder", ["kernels", "python/xeflash", "tests"])
def test_every_folder_is_in_a_row(folder):
    folders = {path.relative_to(ROOT / folder).parts[0] for path in (ROOT / folder).glob("[a-z]*/*.*")}
    named = {path.relative_to(ROOT / folder).parts[0] for path in NAMED if path.is_relative_to(ROOT / folder)}
    assert len(folders) > 5
    assert sorted(folders - named) == [], "give them a row of the table in .github/CONTRIBUTING.md"


def test_every_feature_has_a_test_and_no_two_have_one_name():
    assert [row[0] for row in ROWS if not row[-1]] == []
    assert len({row[0] for row in ROWS}) == len(ROWS)
