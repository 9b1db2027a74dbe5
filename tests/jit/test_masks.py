"""What kernels call of a Mask: the compiler names what a Mask lacks, and mask_contract.hpp lists all that they call."""

import dataclasses
import functools
import re
from pathlib import Path

import pytest
from xeflash.call.score_mod import ScoreMod
from xeflash.jit.kernel import KernelSource, backend_of, render
from xeflash.jit.offline import Compilers
from xeflash.jit.provide import HEADERS
from xeflash.tune.desc import ALGORITHMS, Config, Desc

MEMBERS = {
    "SomeBlocks": {
        "begin": "int begin;",
        "end": "int end;",
        "first": "int first;",
        "last": "int last;",
        "next": "int next(int j, int) const { return j; }",
        "is_full": "bool is_full(int) const { return false; }",
        "has": "bool has(int) const { return true; }",
        "only": "SomeBlocks only(int) const { return *this; }",
        "is_empty": "bool is_empty() const { return false; }",
        "have_none_full": "void have_none_full() {}",
        "keep_share": "void keep_share(int, int) {}",
    },
    "SomeKeys": {
        "begin": "int begin;",
        "end": "int end;",
        "seen_from": "int seen_from;",
        "next": "int next(int key, int, int) const { return key; }",
        "is_full": "bool is_full(int, int) const { return false; }",
    },
    "SomeMask": {
        "SomeMask": "SomeMask(const xeflash::FwdParams&, const xeflash::Sequence&, int) {}",
        "Blocks": "using Blocks = SomeBlocks;",
        "Keys": "using Keys = SomeKeys;",
        "hide": "template <class S, class I, class J> S hide(S s, I, J) const { return s; }",
        "hide_in": "template <bool, class T, class F> void hide_in(T&, int, int, F) const {}",
        "k_blocks": "template <int> SomeBlocks k_blocks(int, int) const { return {}; }",
        "q_blocks": "template <int> SomeBlocks q_blocks(int, int) const { return {}; }",
        "seen_up_to": "int seen_up_to(int) const { return 0; }",
        "keys_of_split": "SomeKeys keys_of_split(int, int, int) const { return {}; }",
        "hide_row": "template <class S> void hide_row(S&, const SomeKeys&, int) const {}",
    },
}
EVERY = [(struct, member) for struct, members in MEMBERS.items() for member in members]
CONSTRAINT = r"  requires \w+Mask<typename Config::Mask>\nXF_INLINE void {}\(const (\w+)& p\)"
TEXTS = {
    name: "".join(Path(HEADERS, f"{header}.hpp").read_text() for header in algorithm.headers)
    for name, algorithm in ALGORITHMS.items()
}
PARAMS = {name: found[1] for name, text in TEXTS.items() if (found := re.search(CONSTRAINT.format(name), text))}
COMPILERS = Compilers()


def mask_of(chosen):
    """Returns a Mask that has these members and no other."""
    return "\n".join(
        f"struct {struct} {{ {' '.join(code for name, code in members.items() if (struct, name) in chosen)} }};"
        for struct, members in MEMBERS.items()
    )


@functools.cache
def refused():
    """Returns the errors of each kernel, by the member that its Mask lacks: all of them are calls in one source."""
    config = Config(16, 32, 64)
    choices, options = backend_of("cpu-generic", "", config)
    lines = [*choices, *(f'#include "{kernel}.hpp"' for kernel in PARAMS)]
    for i, lacking in enumerate(EVERY):
        lines += [f"namespace mask{i} {{", mask_of({*EVERY} - {lacking}), "struct Config { using Mask = SomeMask; };"]
        for kernel, params in PARAMS.items():
            lines += [f"void call_{kernel}(const xeflash::{params}& p) {{ xeflash::{kernel}<Config>(p); }}"]
        lines += ["}"]
    source = KernelSource("masks", "\n".join([*lines, ""]), (*options, "-ferror-limit=0"), config, "cpu-generic")
    with pytest.raises(RuntimeError) as raised:
        COMPILERS.compile(source)
    errors = {kernel: {} for kernel in PARAMS}
    _, *found = re.split(r"error: no matching function for call to '(\w+)'", str(raised.value))
    for kernel, error in zip(found[::2], found[1::2], strict=True):
        errors[kernel][EVERY[int(re.search(r"mask(\d+)::", error)[1])]] = error
    return errors


def test_every_kernel_that_has_a_mask_requires_a_concept():
    named = {kernel for kernel, text in TEXTS.items() if "Config::Mask" in text}
    assert {*PARAMS} == named - {"standard_attention"}  # it has windows alone


@pytest.mark.parametrize(("struct", "member"), EVERY)
def test_what_a_mask_lacks_is_named(struct, member):
    errors = {kernel: of[struct, member] for kernel, of in refused().items() if (struct, member) in of}
    assert errors, "no kernel calls it"
    reason = (
        rf"no (member|type) named '{member}' in 'mask\d+::{struct}'"
        if member != struct
        else r"'M\(p, seq, 0\)' would be invalid"
    )
    for kernel, error in errors.items():
        assert re.search(reason, error), kernel


OWN = {  # what a Mask that inherits from Window replaces, and whose kernel sees that it does not
    "k_blocks": ("template <int N> xeflash::BlockRange k_blocks(int, int) const { return {}; }", "flash_fwd"),
    "q_blocks": ("template <int N> xeflash::BlockRange q_blocks(int, int) const { return {}; }", "flash_bwd_dkv"),
    "keys_of_split": ("xeflash::KeyRange keys_of_split(int, int, int) const { return {}; }", "flash_decode"),
}


def calls_with_masks_of_windows(lacking):
    """Returns a source that calls the kernels of OWN with Masks that inherit from Window; each lacks its member."""
    config = Config(16, 32, 64)
    choices, options = backend_of("cpu-generic", "", config)
    lines = [*choices, *(f'#include "{kernel}.hpp"' for _, kernel in OWN.values())]
    for member, (_, kernel) in OWN.items():
        has = " ".join(code for name, (code, _) in OWN.items() if not (lacking and name == member))
        lines += [f"namespace without_{member} {{", f"struct M : xeflash::Window {{ using Window::Window; {has} }};"]
        lines += [f"static_assert(xeflash::{CONCEPTS[kernel]}<M>);", "}"]
    return KernelSource("own", "\n".join([*lines, ""]), (*options, "-ferror-limit=0"), config, "cpu-generic")


CONCEPTS = {"flash_fwd": "ForwardMask", "flash_bwd_dkv": "BackwardMask", "flash_decode": "DecodeMask"}


def test_a_mask_that_keeps_what_windows_have_is_refused():
    with pytest.raises(RuntimeError) as raised:
        COMPILERS.compile(calls_with_masks_of_windows(lacking=True))
    for member in OWN:
        assert re.search(rf"not satisfy 'Own.*(\n.*)*&without_{member}::M::(template )?{member}\b", str(raised.value))
    COMPILERS.compile(calls_with_masks_of_windows(lacking=False))


@pytest.mark.parametrize("kernel", PARAMS)
def test_no_kernel_calls_more_than_its_concept_lists(kernel):
    more = {"bias": "float32", "bias_gradient": "float32"} if kernel == "flash_bwd_bias" else {}
    if kernel == "flash_bwd_captures":
        more = {"score_mod": ScoreMod("s * a[h]", (("a", "float32", 1),)), "learned": 1}
    made = render(Desc(kernel, "cpu-generic", "float32", 16, 16, 16, split_keys=kernel == "flash_fwd", **more))
    assert "using Mask = Window;" in made.text
    text = made.text.replace("struct Config", f"{mask_of(refused()[kernel])}\nstruct Config")
    text = text.replace("using Mask = Window;", "using Mask = SomeMask;")
    COMPILERS.compile(dataclasses.replace(made, text=text))
