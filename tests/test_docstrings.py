"""The first sentence of each docstring says by itself what it is about, for readers who arrive by a search."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("python/xeflash", "python/build", "python/examples", "perf")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
LONGEST = 120

# A sentence that begins with one of these leans on a sentence before it, or is a part of one.
FRAGMENTS = re.compile(
    """(?:all of|also|and|as|at|because|before|besides|but|by|each of|else|for|from|he|here|how|if|in|it|its|like|of|on|
    one of|only|or|others|so|some of|such|that|the first of|the last of|the one|the ones|the other|the others|the rest|
    the same|their|them|then|there|these|they|this|those|what|when|where|whether|which|who|whom|whose|why|with|
    without)\\b""".replace("\n    ", ""),
    re.IGNORECASE,
)

# What a function does is said by a verb of the third person. A new one joins the list; a noun in the plural does not.
VERBS = frozenset(
    re.findall(
        r"\w+",
        """accepts adds allocates appends applies asks attends binds bounds builds calls checks chooses closes
        collects combines compares compiles computes converts copies counts creates cuts decides declares
        deletes describes divides downloads draws ends exchanges expands extracts fetches fills finds follows
        forgets formats frees gathers generates gives hands holds ignores imports initialises inserts
        interleaves joins judges keeps launches loads logs makes measures merges moves multiplies names notes
        opens packs parses patches performs places plots prepares prints puts quantises raises reads rebuilds
        receives reduces refuses registers releases removes renames reorders repeats replaces reports resets
        reshapes restores returns rewrites rotates rounds runs saves says sends sets shows simulates skips
        sleeps sorts splits stacks starts stops stores subtracts sums takes tells times translates tries turns
        undoes unloads unpacks updates validates waits warns wraps writes yields""",
    )
)


def first_sentence(text: str) -> str:
    """Returns the text up to the first full stop that ends a sentence, or up to the first empty line."""
    paragraph = " ".join(text.strip().split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s+(?=[A-Z`(\"'])", paragraph)[0]


def fault(kind: type[ast.AST], text: str) -> str | None:
    """Returns what is wrong with the docstring of a module, a class or a function, or None."""
    sentence = first_sentence(text)
    if len(sentence) > LONGEST:
        return f"its first sentence has {len(sentence)} characters, of at most {LONGEST}"
    if begins := FRAGMENTS.match(sentence):
        return f"{begins[0]!r} begins a part of a sentence"
    word, _, following = sentence.partition(" ")
    is_noun = re.match(r"(of|whose|are)\b", following)  # "Names of"
    if kind in FUNCTIONS and (word.lower() not in VERBS or is_noun) and not sentence.startswith("True if "):
        return f"{word!r} is no verb that says what the function does"
    return None


def docstrings(path: Path) -> Iterator[tuple[str, type[ast.AST], str]]:
    """Yields where each docstring of a file is, what it is of, and its text."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)) and (text := ast.get_docstring(node)):
            yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}", type(node), text


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_first_sentence_stands_alone(folder):
    paths = sorted((ROOT / folder).rglob("*.py"))
    found = [(at, fault(kind, text), text) for path in paths for at, kind, text in docstrings(path)]
    assert found
    assert [f"{at}: {wrong}: {first_sentence(text)}" for at, wrong, text in found if wrong] == []


GOOD = [
    (ast.FunctionDef, "Returns (out, LSE) of a call. The LSE may be None."),
    (ast.FunctionDef, "Draws a token for each row of logits (..., V), in int64."),
    (ast.FunctionDef, "True if an array lies on a GPU."),
    (ast.FunctionDef, "Names the ranks that do not answer."),
    (ast.ClassDef, "The cache of compiled kernels."),
    (ast.Module, "Tables of Xe GPUs."),
]
BAD = [
    (ast.FunctionDef, "What a call asks of a device."),
    (ast.FunctionDef, "Whether rows have numbers."),
    (ast.FunctionDef, "The rows of a cache."),
    (ast.FunctionDef, "(out, LSE) of a call."),
    (ast.FunctionDef, "Names of the ranks that do not answer."),
    (ast.FunctionDef, "Rows of a cache."),
    (ast.FunctionDef, "Return the rows of a cache."),
    (ast.FunctionDef, f"Returns {'a very ' * 20}long sentence."),
    (ast.ClassDef, "Those of a step."),
    (ast.ClassDef, "Each of them."),
    (ast.Module, "How a call is shared out over a device."),
]


@pytest.mark.parametrize("kind, text", GOOD)
def test_a_sentence_that_stands_alone_passes(kind, text):
    assert fault(kind, text) is None


@pytest.mark.parametrize("kind, text", BAD)
def test_a_sentence_that_does_not_stand_alone_fails(kind, text):
    assert fault(kind, text)
