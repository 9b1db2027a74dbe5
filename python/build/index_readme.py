"""The text of README.md for package indexes; pyproject.toml makes scikit-build-core call this module."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def without_relative_links(text: str) -> str:
    """Removes relative links, which lead nowhere on an index: their words stay, pictures go."""
    target = r"\]\((?![a-z]+:)[^)]*\)"
    text = re.sub(r"!\[[^\]]*" + target + "\n*", "", text)
    return re.sub(r"\[([^\]]*)" + target, r"\1", text)


def dynamic_metadata(_settings: Mapping[str, Any], _project: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the readme of the project's metadata."""
    text = without_relative_links(Path("README.md").read_text(encoding="utf-8"))
    return {"readme": {"content-type": "text/markdown", "text": text}}
