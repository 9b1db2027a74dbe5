"""The READMEs say what is true: their examples run, links lead somewhere, and the matrix is what the tests cover."""

import doctest
import importlib
import os
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import support_matrix
import xeflash
from over_ranks import run_program

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("python", "kernels", "perf", "tests", ".github")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(file for folder in FOLDERS for file in (ROOT / folder).rglob("*.md"))])
IN_DEFAULT_SET = {"python": 1, ".github": 0}  # of these folders only the first examples
EXAMPLES = [
    pytest.param(
        example,
        document.stem == "distributed",
        id=f"{document.relative_to(ROOT).parent}-{document.stem}-{number}",
        marks=pytest.mark.wide if number >= IN_DEFAULT_SET.get(document.parent.name, 99) else (),
    )
    for document in DOCUMENTS
    for number, example in enumerate(re.findall(r"```python\n(.*?)```", document.read_text(), re.DOTALL))
]


def test_support_matrix_is_current():
    text = support_matrix.README.read_text()
    assert support_matrix.with_matrix(text) == text, "run: python tests/support_matrix.py"


def test_matrix_has_no_gap():
    assert support_matrix.gaps() == []


@pytest.mark.parametrize(("example", "over_ranks"), EXAMPLES)
def test_example_runs(example, over_ranks, tmp_path):
    # In a process of its own: a device is simulated only if SYCL was not asked for devices before.
    words, environment = ["-c", example], dict(os.environ)
    if over_ranks:
        (tmp_path / "example.py").write_text(example)
        words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(tmp_path / "example.py")]
        environment |= {"OMP_NUM_THREADS": "1", "DPCPP_CPU_NUM_CUS": "1"}  # of each rank
    done = run_program([sys.executable, *words], timeout=120, env=environment)
    assert done.returncode == 0, done.stderr


def test_there_are_examples():
    assert len(EXAMPLES) > 8


@pytest.mark.parametrize("page", sorted((ROOT / "python").glob("*.md")), ids=lambda path: path.name)
def test_page_of_the_guide_is_short(page):
    assert len(page.read_text().splitlines()) <= 250


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document):
    text = document.read_text()
    headings = {document: anchors(text)}
    for target in re.findall(r"\]\((?!https://)([^)]+)\)", text):
        path, _, anchor = target.partition("#")
        file = (document.parent / path).resolve() if path else document
        assert file.exists(), target
        if anchor:
            assert anchor in headings.setdefault(file, anchors(file.read_text())), target


def anchors(text):
    """Of the headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_environment_variable_is_in_the_guide():
    text = "".join((ROOT / page).read_text() for page in ("python/README.md", "perf/xesim/README.md"))
    table = set(re.findall(r"^\| `(XEFLASH_\w+)`", text, re.MULTILINE))
    named = set()
    for file in [*(ROOT / "python").rglob("*.py"), *(ROOT / "perf/xesim").rglob("*.cpp")]:
        named |= set(
            re.findall(r"(?:environ\S*?|getenv\(|variable\(|_number\()\s*[\[(]?\s*\"(XEFLASH_\w+)\"", file.read_text())
        )
    assert named and named <= table, named - table


@pytest.mark.parametrize("name", xeflash.__all__)
def test_public_function_has_a_running_example(name):
    function = getattr(xeflash, name)
    module = importlib.import_module(function.__module__)
    (example,) = [t for t in doctest.DocTestFinder(recurse=False).find(function, name, module) if t.examples]
    result = doctest.DocTestRunner().run(example)
    assert result.attempted and not result.failed


def test_drawn_causal_masks_are_those_of_the_functions():
    drawing = re.search(r"## Causal alignment.*?```\n(.*?)```", (ROOT / "python/README.md").read_text(), re.DOTALL)[1]
    rows = [re.findall(r"[■·]", line) for line in drawing.splitlines()[2:]]
    q, k, v = np.zeros((1, 3, 1, 8), np.float32), np.zeros((1, 5, 1, 8), np.float32), np.eye(5, 8, dtype=np.float32)
    by_heads = [x.swapaxes(1, 2) for x in (q, k, v[None, :, None])]
    top_left = xeflash.attention(*by_heads, is_causal=True)[0, 0]
    for out in (
        xeflash.attention(*by_heads, is_causal=True, bottom_right=True)[0, 0],
        xeflash.flash_attn_func(q, k, v[None, :, None], causal=True)[0, :, 0],
    ):
        assert [["■" if x > 0 else "·" for x in (*a[:5], *b[:5])] for a, b in zip(top_left, out, strict=True)] == rows
