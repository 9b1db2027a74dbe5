"""What is said of a kernel that does not compile."""

import importlib
from pathlib import Path

import pytest
from xeflash import _core
from xeflash.jit import headers, kernel

provide = importlib.import_module("xeflash.jit.provide")  # the package has the function under this name

DESC = kernel.Desc("flash_fwd", "bmg", "float16", 64, 64, 64, access="block2d", device="a GPU", driver="1.0")
BUILT = "The program was built for 1 devices\nBuild program log for 'Intel(R) Arc(TM) B580 Graphics':\n"


@pytest.mark.parametrize(
    ("log", "first"),
    [
        (BUILT + "xesim: no ocloc was found. Get one: there\n\n", "xesim: no ocloc was found. Get one: there"),
        (BUILT + "warning: odd\na.cpp:1: error: no such thing\nerror: more", "a.cpp:1: error: no such thing"),
        ("a.cpp:1: error: no such thing\n", "a.cpp:1: error: no such thing"),
        ("nothing to say", "nothing to say"),
        (BUILT, "The program was built for 1 devices"),
    ],
)
def test_the_reason_is_in_the_message_and_all_of_it_in_the_log(monkeypatch, tmp_path, log, first):
    def fail(*arguments):
        raise RuntimeError(log)

    monkeypatch.setenv("XEFLASH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_core, "compile_source", fail)
    with pytest.raises(RuntimeError) as error:
        provide.find_or_build(kernel.render(DESC), DESC, 0)
    path = tmp_path / f"{kernel.render(DESC).name}.failed.log"
    message = str(error.value).splitlines()[0]
    assert message.startswith(f"xeflash: {kernel.render(DESC).name} did not compile: {first}")
    assert str(path) in str(error.value) and log in path.read_text()


def no_header(name):
    return f"In file included from rtc.cpp:1:\nsystem.hpp:6:10: fatal error: '{name}' file not found\n    6 | #include"


@pytest.fixture
def compile_with(monkeypatch, tmp_path):
    """Compiles a kernel by a stand-in of the compiler, and tells which options it got."""
    monkeypatch.setenv("XEFLASH_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(provide, "CXX_HEADERS", headers.Headers(tmp_path))
    monkeypatch.setattr(headers.extension, "libcxx", lambda: Path("/lib/include/c++/v1"))

    def compile_with(compiler):
        monkeypatch.setattr(_core, "compile_source", lambda queue, text, options, entry: compiler(options))
        return provide.find_or_build(kernel.render(DESC), DESC, 0, again=True)

    return compile_with


def test_without_the_headers_of_gcc_those_of_the_compiler_are_taken_from_then_on(compile_with):
    asked = []

    def compiler(options):
        asked.append(own := "-nostdinc++" in options)
        if not own:
            raise RuntimeError(no_header("concepts"))
        return b"code", ""

    assert compile_with(compiler) == compile_with(compiler) == b"code"
    assert asked == [False, True, True]


@pytest.mark.parametrize("own", [True, False])
def test_without_any_headers_the_error_names_the_kernel_and_what_to_install(compile_with, monkeypatch, own):
    asked = []
    if not own:
        monkeypatch.setattr(headers.extension, "libcxx", lambda: None)

    def compiler(options):
        asked.append(options)
        raise RuntimeError(no_header("bits/types.h"))

    for _ in range(2):  # the compiler would crash if it was asked again
        with pytest.raises(headers.NoCompiler) as error:
            compile_with(compiler)
        assert str(error.value).startswith(
            f"xeflash: {kernel.render(DESC).name} did not compile: fatal error: 'bits/types.h' file not found; "
            "kernels are compiled with the C++ headers of g++: install it (apt install g++, "
        )
    assert len(asked) == 1 + own


def test_headers_of_ours_that_are_missing_are_another_error(compile_with):
    def compiler(options):
        raise RuntimeError(no_header("attention/config.hpp"))

    with pytest.raises(RuntimeError, match="'attention/config.hpp' file not found") as error:
        compile_with(compiler)
    assert not isinstance(error.value, headers.NoCompiler)
