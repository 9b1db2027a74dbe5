"""The words that kernels are written in: headers list them all, and contracts check them in both backends."""

import dataclasses
import re
from pathlib import Path

import pytest
from xeflash.jit.kernel import KernelSource, backend_of
from xeflash.jit.offline import compile_offline
from xeflash.jit.provide import HEADERS
from xeflash.tune.desc import Config

DECLARED = re.compile(
    r"^(?:struct|using|constexpr \w+) (?P<name>[A-Za-z_]\w*)|^XF_INLINE .*?\b(?P<function>\w+)\(", re.MULTILINE
)


LISTS = (
    "tile/tile.hpp",
    *(f"products/{name}.hpp" for name in ("products", "scores", "logits", "blocks", "top_list", "turns")),
)
CONTRACTS = ("tile/contract.hpp", "products/contract.hpp")


def text_of(*patterns):
    files = [file for pattern in patterns for file in sorted(Path(HEADERS).glob(str(pattern)))]
    assert files, patterns
    return re.sub(r"//.*", "", "\n".join(file.read_text() for file in files))


def words(text):
    return set(re.findall(r"[A-Za-z_]\w*", text))


def declared(*patterns):
    return {match["name"] or match["function"] for match in DECLARED.finditer(text_of(*patterns))} - {"namespace"}


def listed_in(*files):
    """Returns the words that headers list: the first column of their comments."""
    lines = [line for file in files for line in Path(HEADERS, file).read_text().splitlines()]
    columns = [re.sub("<.*?>", "", line[5:]).split("  ")[0] for line in lines if re.match(r"//   \S", line)]
    return {name for column in columns for name in re.findall(r"(?:^|, )([A-Za-z_]\w*)", column)}


def own_words():
    """Returns the words that a single header lists as its own, each with that header."""
    files = [*Path(HEADERS).glob("*.hpp"), *Path(HEADERS).glob("attention/*.hpp"), *Path(HEADERS).glob("tile/*.hpp")]
    return {word: file for file in files for word in re.findall(r"^// Word: (\w+)", file.read_text(), re.MULTILINE)}


def listed():
    return listed_in(*LISTS) | set(own_words())


def test_the_list_of_tiles_is_short():
    assert len(listed_in("tile/tile.hpp")) <= 75


def test_a_word_of_one_header_is_used_nowhere_else():
    folders = ("*.hpp", "attention/*.hpp", "products/*.hpp", "tile/*.hpp")
    files = {file for folder in folders for file in Path(HEADERS).glob(folder) if file.name != "contract.hpp"}
    for word, own in own_words().items():
        assert [file.name for file in files if word in words(text_of(file.relative_to(HEADERS)))] == [own.name], word


@pytest.mark.parametrize("backend", ["cpu", "xe"])
def test_a_backend_has_every_word(backend):
    missing = listed() - words(text_of(f"{backend}/*.hpp", "tile/*.hpp", "products/scores.hpp"))
    assert not missing, f"kernels/{backend} has no {sorted(missing)}"


def test_every_word_that_kernels_use_is_listed():
    both = declared("cpu/*.hpp") & declared("xe/*.hpp")
    assert len(both) > 60
    used = words(text_of("*.hpp", "attention/*.hpp", "products/*.hpp"))
    assert sorted((both & used) - listed()) == [], f"kernels/{LISTS} do not list them"


def test_contracts_check_the_words_that_are_listed():
    checks = re.findall(r"^XF_(?:CALL|NUMBER|TYPE)\((\w+),(.*?)\);$", text_of(*CONTRACTS), re.MULTILINE | re.DOTALL)
    assert len(checks) > 90
    for name, code in checks:  # a name is a word, or a word and what it is called with
        word = max((word for word in listed() if f"{name}_".startswith(f"{word}_")), key=len, default="no word")
        assert word in words(code) or word[0].isupper(), name  # a type may have a short name here
    assert sorted(listed() - words(text_of(*CONTRACTS))) == []


BACKENDS = [
    pytest.param("cpu-generic", "", Config(16, 32, 64), id="cpu"),
    pytest.param("bmg", "block2d", Config(16, 32, 64, threads=8, team=2, pairs=True), id="bmg"),
    pytest.param("dg2", "dwords", Config(16, 32, 64, threads=8), id="dg2"),
]


def contract(arch, access, config, contracts=CONTRACTS[:1], missing=()):
    """Returns a source that checks contracts. Words that are `missing` have other names in its backend."""
    choices, options = backend_of(arch, access, config)
    renamed = [f"#define {word} no_{word}" for word in missing]
    restored = [f"#undef {word}" for word in missing]
    vocabulary = [f'#include "{file}"' for file in LISTS]
    checks = [f'#include "{file}"' for file in contracts]
    text = "\n".join([*choices, *renamed, *vocabulary, *restored, *checks, "XF_KERNEL void nothing() {}", ""])
    return KernelSource("contract", text, (*options, "-ferror-limit=0"), config, arch)


@pytest.mark.parametrize(("arch", "access", "config"), BACKENDS)
def test_a_backend_fulfils_the_contract(arch, access, config):
    compile_offline(contract(arch, access, config))


@pytest.mark.parametrize(("arch", "access", "config"), BACKENDS)
def test_a_backend_fulfils_the_contract_of_products(arch, access, config):
    alone = dataclasses.replace(config, team=1, pairs=False)
    compile_offline(contract(arch, access, alone, CONTRACTS))


def test_what_a_backend_lacks_is_named():
    missing = listed() - {"bf16", "Rows"}  # they are no backend's
    missing -= {"max"}  # the standard library undefines it
    while missing:  # an error of one word may hide that of another
        with pytest.raises(RuntimeError) as error:
            compile_offline(contract(*BACKENDS[0].values, CONTRACTS, sorted(missing)))
        errors = "\n".join(re.findall("error: .*", str(error.value)))
        named = {word for word in missing if re.search(rf"a backend needs {word}\b|'{word}'", errors)}
        assert named, f"no error names {sorted(missing)}"
        missing -= named
