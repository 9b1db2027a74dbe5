"""The words that kernels are written in: two headers list them all, and both backends have each."""

import re
from pathlib import Path

import pytest
from xeflash.jit.provide import HEADERS

DECLARED = re.compile(
    r"^(?:struct|using|constexpr \w+) (?P<name>[A-Za-z_]\w*)|^XF_INLINE .*?\b(?P<function>\w+)\(", re.MULTILINE
)


LISTS = (
    "tile/tile.hpp",
    *(f"products/{name}.hpp" for name in ("products", "scores", "logits", "blocks", "top_list", "turns")),
)


def text_of(*patterns):
    files = [file for pattern in patterns for file in sorted(Path(HEADERS).glob(pattern))]
    assert files, patterns
    return re.sub(r"//.*", "", "\n".join(file.read_text() for file in files))


def words(text):
    return set(re.findall(r"[A-Za-z_]\w*", text))


def declared(*patterns):
    return {match["name"] or match["function"] for match in DECLARED.finditer(text_of(*patterns))} - {"namespace"}


def listed():
    """Its words are the first column of the comment."""
    lines = [line for file in LISTS for line in Path(HEADERS, file).read_text().splitlines()]
    columns = [re.sub("<.*?>", "", line[5:]).split("  ")[0] for line in lines if re.match(r"//   \S", line)]
    return {name for column in columns for name in re.findall(r"(?:^|, )([A-Za-z_]\w*)", column)}


@pytest.mark.parametrize("backend", ["cpu", "xe"])
def test_a_backend_has_every_word(backend):
    missing = listed() - words(text_of(f"{backend}/*.hpp", "tile/*.hpp", "products/scores.hpp"))
    assert not missing, f"kernels/{backend} has no {sorted(missing)}"


def test_every_word_that_kernels_use_is_listed():
    both = declared("cpu/*.hpp") & declared("xe/*.hpp")
    assert len(both) > 60
    used = words(text_of("*.hpp", "attention/*.hpp", "products/*.hpp"))
    assert sorted((both & used) - listed()) == [], f"kernels/{LISTS} do not list them"
