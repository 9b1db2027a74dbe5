"""What is said of a kernel that does not compile."""

import importlib

import pytest
from xeflash import _core
from xeflash.jit import kernel

provide = importlib.import_module("xeflash.jit.provide")  # the package has the function under this name

DESC = kernel.Desc("flash_fwd", "bmg", "float16", 64, 64, 64, access="block2d", device="a GPU", driver="1.0")
BUILT = "The program was built for 1 devices\nBuild program log for 'Intel(R) Arc(TM) B580 Graphics':\n"


@pytest.mark.parametrize(
    ("log", "first"),
    [
        (BUILT + "xesim: no ocloc was found. Get one: there\n\n", "xesim: no ocloc was found. Get one: there"),
        (BUILT + "warning: odd\na.cpp:1: error: no such thing\nerror: more", "a.cpp:1: error: no such thing"),
        ("a.cpp:1: error: no such thing\n", "a.cpp:1: error: no such thing"),
        (
            "a.hpp:8:10: fatal error: 'utility' file not found\n",
            "a.hpp:8:10: fatal error: 'utility' file not found; "
            "kernels are compiled with the C++ headers of g++: install it (apt install g++)",
        ),
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
