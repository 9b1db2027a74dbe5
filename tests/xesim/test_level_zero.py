"""The simulator's own declarations of Level Zero (driver/level_zero.hpp), against the real headers where there are any."""

import re
import subprocess
from pathlib import Path

import pytest

DRIVER = Path(__file__).parents[2] / "perf" / "xesim" / "driver"
REAL = "#include <level_zero/ze_api.h>\n"


def compile_with_gcc(source: str, program: Path) -> subprocess.CompletedProcess[str]:
    command = ["g++", "-std=c++20", "-Wno-invalid-offsetof", "-x", "c++", "-", "-o", str(program)]
    return subprocess.run(command, input=source, capture_output=True, text=True)


@pytest.fixture
def real_headers(tmp_path):
    """Level Zero 1.20 or newer, where g++ finds it (Debian: libze-dev; or a folder in CPATH)."""
    newest = REAL + "auto structure = ZE_STRUCTURE_TYPE_KERNEL_MAX_GROUP_SIZE_EXT_PROPERTIES; int main() {}"
    if compile_with_gcc(newest, tmp_path / "probe").returncode != 0:
        pytest.skip("Level Zero's own headers, of 1.20 or newer, are not on this machine: nothing to compare with")


def without_comments(path: Path) -> str:
    return re.sub(r"//.*", "", path.read_text())


def layout_of(header: str, folder: Path) -> list[str]:
    """Sizes, offsets and values of all that our header declares, as a program prints them that includes `header`."""
    ours = without_comments(DRIVER / "level_zero.hpp")
    lines = []
    for name, base, body in re.findall(r"struct (ze_\w+)( : Extensible)? \{(.*?)\};", ours, re.S):
        members = ["stype", "pNext"] if base else []
        for declaration in body.split(";"):
            members += re.findall(r"(\w+)(?:\[\d+\])?\s*(?:,|$)", declaration.strip())
        lines += [f'printf("{name} %zu\\n", sizeof({name}));']
        lines += [f'printf("{name}.{m} %zu %zu\\n", offsetof({name}, {m}), sizeof({name}::{m}));' for m in members]
    for name in re.findall(r"using (ze_\w+) = \w+;", ours):
        lines += [f'printf("{name} %zu\\n", sizeof({name}));']
    for name in re.findall(r"\b(ZE_\w+) = ", ours):
        lines += [f'printf("{name} %lu\\n", static_cast<unsigned long>({name}));']
    source = f"{header}#include <cstddef>\n#include <cstdio>\nint main() {{\n" + "\n".join(lines) + "\n}\n"
    done = compile_with_gcc(source, folder / "layout")
    assert done.returncode == 0, done.stderr[:2000]
    return subprocess.run([folder / "layout"], capture_output=True, text=True, check=True).stdout.splitlines()


def test_structures_and_numbers_are_those_of_level_zero(real_headers, tmp_path):
    ours = layout_of(f'#include "{DRIVER / "level_zero.hpp"}"\n', tmp_path)
    assert len(ours) > 250
    assert ours == layout_of(REAL, tmp_path)


def test_functions_have_the_signatures_of_level_zero(real_headers, tmp_path):
    signatures = []
    for path in sorted(DRIVER.glob("api_*.cpp")):
        signatures += re.findall(r"(?m)^(ze_result_t ze[A-Z]\w+\([^{]*\)) \{", without_comments(path))
    assert len(signatures) > 100
    declared = "".join(f"{signature};\n" for signature in signatures)
    done = compile_with_gcc(f'{REAL}extern "C" {{\n{declared}}}\nint main() {{}}\n', tmp_path / "signatures")
    assert done.returncode == 0, done.stderr[:2000]
