"""Files of tests that rest depend on nothing that unchanged.py does not look at."""

import ast
import re

import pytest
import unchanged


def imports(tree):
    """Modules, wherever in a file the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module == "xeflash")
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("importorskip"):
            yield ast.literal_eval(node.args[0])


@pytest.mark.parametrize("file", sorted(unchanged.FILES))
def test_files_that_rest_import_nothing_that_is_not_looked_at(file):
    shared = {name.removesuffix(".py") for name in unchanged.SHARED}
    helpers = {path.stem for path in unchanged.ROOT.glob("tests/*.py")}
    text = (unchanged.ROOT / file).read_text()
    for name in imports(ast.parse(text)):
        if name.partition(".")[0] == "xeflash":
            assert name == "xeflash" or name.startswith(unchanged.MODULES), name
        assert name not in helpers - shared, name
    for program in re.findall(r"(?:import|from) xeflash(?:\.[\w.]+)?", text):  # those that tests start, too
        assert program.split()[1] == "xeflash" or program.split()[1].startswith(unchanged.MODULES), program


def test_kernels_of_files_that_rest_include_none_of_the_package():
    folder = unchanged.ROOT / "tests/xesim/kernels"
    for path in (path for path in folder.iterdir() if path.stem != "window"):  # test_esimd_window runs always
        for header in re.findall(r'#include "(.+)"', path.read_text()):
            assert (folder / header).exists(), f"{path.name} includes {header}"


def test_a_stamp_is_of_all_that_a_file_depends_on(monkeypatch, tmp_path):
    file = sorted(unchanged.FILES)[0]

    def stamp(*more):
        monkeypatch.setattr(unchanged, "_files", lambda: iter(more))
        unchanged._shared_digest.cache_clear()
        return unchanged.stamp_of(file)

    helper = tmp_path / "helper.py"
    helper.write_text("1")
    first = stamp(helper)
    assert stamp(helper) == first != stamp()
    helper.write_text("2")
    assert stamp(helper) != first
    assert unchanged.stamp_of(sorted(unchanged.FILES)[1]).name != first.name
    unchanged._shared_digest.cache_clear()
