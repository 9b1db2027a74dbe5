"""A release says the same everywhere, and its page on a package index has no dead link."""

import importlib.metadata
import re
import runpy
from pathlib import Path

import xeflash

ROOT = Path(__file__).resolve().parent.parent
without_relative_links = runpy.run_path(str(ROOT / "python/build/index_readme.py"))["without_relative_links"]


def test_version_is_that_of_the_package_and_of_the_changelog():
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert xeflash.__version__ == importlib.metadata.version("xeflash") == newest


def test_index_shows_the_readme_without_relative_links():
    text = (ROOT / "README.md").read_text()
    shown = without_relative_links(text)
    assert "](python/README.md" in text and "![" in text
    assert re.findall(r"\]\((?!https?://)", shown) == []
    assert "python/README.md" in shown and "simulator, below the unmodified" in shown  # what the links said stays


def test_index_keeps_other_links():
    assert (
        without_relative_links("[a](https://a.org) [b](b.md#c) ![c](c.png)\n![d](https://d.org)\n[e](#e)")
        == "[a](https://a.org) b ![d](https://d.org)\ne"
    )


def test_wheels_are_built_and_tested_for_the_pythons_that_are_promised():
    project = (ROOT / "pyproject.toml").read_text()
    promised = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', project)
    built = re.search(r'^build = "cp3\{(.*?)\}', project, re.MULTILINE)[1].split(",")
    tested = re.findall(r'"(3\.\d+)"', (ROOT / ".github/workflows/test.yml").read_text())
    assert promised == [f"3.{minor}" for minor in built]
    assert tested == [promised[0], promised[-1]]
    assert f'requires-python = ">={promised[0]}"' in project
