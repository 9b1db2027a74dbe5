"""The folders of python/xeflash are floors: a module imports its own folder and those further down."""

import ast
import functools
import re
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "python" / "xeflash"
TABLE = (ROOT / ".github" / "CONTRIBUTING.md").read_text().split("## The floors of")[1].split("##")[0]
FLOORS = [re.findall(r"`(\w+)/?`", row.split("|")[1]) for row in re.findall(r"^\| .*`.*", TABLE, re.MULTILINE)]
IMPORT_TORCH = ("torch_ops", "distributed", "integrations", "bench")
# The build writes the sources of kernels by them, when there is no extension yet.
WITHOUT_EXTENSION = ("call.schema", "call.score_mod", "tune", "jit.kernel", "jit.prebuilt")
MOST_LINES = 400


def name_of(file: Path) -> str:
    return ".".join(file.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(file): file for file in sorted(PACKAGE.rglob("*.py"))}
FACE = "__init__"


def folder(module: str) -> str:
    return module.split(".")[0]


def floor(module: str) -> int:
    (found,) = (i for i, names in enumerate(reversed(FLOORS)) if folder(module) in names)
    return found


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def imported(node: ast.AST) -> list[str]:
    """The names that a statement, or a call of import_module, asks for."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func):
        return [x.value for x in node.args[:1] if isinstance(x, ast.Constant)]
    return []


def module_of(name: str) -> str | None:
    """Ours that has this name in it; the extension, which all may ask for, is none."""
    if name.split(".")[0] != "xeflash" or name.split(".")[1:2] == ["_core"]:
        return None
    parts = name.split(".")[1:]
    while parts and ".".join(parts) not in MODULES:
        parts.pop()
    return ".".join(parts) or FACE


@functools.cache
def needs(module: str) -> set[str]:
    found = {module_of(name) for node in ast.walk(tree_of(module)) for name in imported(node)}
    return {name for name in found if name not in (None, module)}


def at_top(tree: ast.Module) -> list[str]:
    return [name for node in tree.body for name in imported(node)]


def test_every_module_has_one_floor_and_the_table_names_no_other():
    assert {folder(module) for module in MODULES} == {name for names in FLOORS for name in names}
    assert len(FLOORS) > 5 and all(floor(module) >= 0 for module in MODULES)


def test_imports_go_down_or_stay():
    found = [(module, other) for module in MODULES for other in needs(module)]
    assert len(found) > 100
    assert not [x for x in found if folder(x[0]) != folder(x[1]) and floor(x[1]) >= floor(x[0])]


def test_attention_and_products_of_a_folder_do_not_know_each_other():
    rooms = {(".".join(a.split(".")[:2]), ".".join(b.split(".")[:2])) for a in MODULES for b in needs(a)}
    for inside in ("api", "torch_ops", "selftest"):
        ours = {f"{inside}.{name}" for name in ("attention", "products")}
        assert ours <= {a for a, _ in rooms}
        assert [x for x in rooms if set(x) == ours] == []


def test_imports_inside_a_folder_have_no_circle():
    for name in sorted({folder(module) for module in MODULES}):
        inside = {m: {o for o in needs(m) if folder(o) == name and o != name} for m in MODULES if folder(m) == name}
        try:
            TopologicalSorter(inside).prepare()
        except CycleError as circle:
            raise AssertionError(circle.args[1]) from None


def test_torch_is_imported_at_the_top_by_few():
    by = {folder(m) for m in MODULES if any(name.split(".")[0] == "torch" for name in at_top(tree_of(m)))}
    assert by == set(IMPORT_TORCH)


def test_kernels_are_described_without_the_extension():
    waiting = [m for m in MODULES if m in WITHOUT_EXTENSION or folder(m) in WITHOUT_EXTENSION]
    seen = set()
    while waiting:
        module = waiting.pop()
        if module not in seen and module != FACE:
            seen.add(module)
            assert not any("xeflash._core" in name for name in at_top(tree_of(module))), module
            waiting += {module_of(name) for name in at_top(tree_of(module))} - {None, "jit"}
    assert {"tune.desc", "call.score_mod"} <= seen


def test_no_module_is_long():
    assert [m for m, file in MODULES.items() if len(file.read_text().splitlines()) > MOST_LINES] == []
