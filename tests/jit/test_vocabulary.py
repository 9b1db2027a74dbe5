"""The words that kernels are written in: headers list them all, and tile/contract.hpp checks both backends."""

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


BACKENDS = [
    pytest.param("cpu-generic", "", Config(16, 32, 64), id="cpu"),
    pytest.param("bmg", "block2d", Config(16, 32, 64, threads=8, team=2, pairs=True), id="bmg"),
    pytest.param("dg2", "dwords", Config(16, 32, 64, threads=8), id="dg2"),
]


def contract(arch, access, config):
    choices, options = backend_of(arch, access, config)
    text = "\n".join([*choices, '#include "tile/contract.hpp"', "XF_KERNEL void nothing() {}", ""])
    return KernelSource("contract", text, options, config, arch)


@pytest.mark.parametrize(("arch", "access", "config"), BACKENDS)
def test_a_backend_fulfils_the_contract(arch, access, config):
    compile_offline(contract(arch, access, config))


def test_what_a_backend_lacks_is_named(tmp_path):
    source = contract(*BACKENDS[0].values)
    header = Path(HEADERS, "cpu/tile.hpp").read_text()
    (tmp_path / "cpu").mkdir()
    for word in ("weigh", "column_sums"):
        (tmp_path / "cpu" / "tile.hpp").write_text(re.sub(rf"\b{word}\(", f"no_{word}(", header))
        with pytest.raises(RuntimeError, match=f"a backend needs {word}"):
            compile_offline(dataclasses.replace(source, options=(*source.options, f"-I{tmp_path}")))
