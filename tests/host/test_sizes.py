"""The extension chooses no sizes: its numbers are those of xeflash.tune, or have a name that says what dictates them."""

import re
from pathlib import Path

HOST = Path(__file__).parents[2] / "python" / "host"
# They speak of what others dictate: types of DLPack and numpy, drivers' binaries, instructions, messages of GPUs.
OF_FORMATS = ("array.cpp", "native_level_zero.cpp", "native_opencl.cpp", "cpu_rates.cpp", "xpu_stream.cpp", "gpus.cpp")
OF_FORMATS += ("access.cpp",)


def code_of(text: str) -> str:
    """Without comments, strings, includes and named constants."""
    text = re.sub(r"//.*", "", text)
    text = re.sub(r'"(?:\\.|[^"\\])*"', '""', text)
    text = re.sub(r"^#.*", "", text, flags=re.MULTILINE)
    return re.sub(r"constexpr [\w:<>]+ k[A-Z]\w*(\[\])? =[^;]*;", "", text)


def sizes(text: str) -> list[str]:
    """What could be one: multiples of 8 from 16 on. Of limits and formats others are left: 31 bits, 1e38, -100."""
    return [n for n in re.findall(r"(?<![\w.-])(?<!>> )(\d+)(?![\w.])", text) if int(n) >= 16 and int(n) % 8 == 0]


def test_numbers_of_the_extension_have_names():
    files = [path for path in sorted(HOST.rglob("*.[ch]pp")) if path.name not in OF_FORMATS]
    assert len(files) > 40
    found = {path.name: numbers for path in files if (numbers := sizes(code_of(path.read_text())))}
    assert found == {}


def test_a_size_is_seen():
    assert sizes(code_of("rows = std::max(rows, 32);  // or 64")) == ["32"]
    assert sizes(code_of("constexpr int kRows = 48; std::min<int32_t>(x, 1e-16f + 0x20)")) == []
