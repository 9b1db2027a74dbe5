"""Writes the symbols that xeflash._core takes from libsycl, checked against one libsycl.

    python tests/host/libsycl_symbols.py LIBSYCL [EXTENSION] > tests/host/libsycl_symbols.txt

LIBSYCL is libsycl.so.9 of the oldest intel-sycl-rt that must work, 2026.0.0 (`pip download --no-deps
intel-sycl-rt==2026.0.0`, unzip). Fails and names them if it lacks symbols that the extension needs.
"""

from __future__ import annotations

import importlib.util
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

SHT_DYNAMIC, SHT_DYNSYM = 6, 11
DT_NEEDED, DT_RUNPATH = 1, 29


class Elf:
    """The dynamic section and symbols of a little-endian 64-bit ELF file."""

    def __init__(self, path: Path) -> None:
        self.bytes = Path(path).read_bytes()
        assert self.bytes[:6] == b"\x7fELF\x02\x01", f"{path} is no little-endian 64-bit ELF file"
        offset = struct.unpack_from("<Q", self.bytes, 40)[0]
        size, count = struct.unpack_from("<HH", self.bytes, 58)
        # type, offset, size, link of each section
        headers = (struct.unpack_from("<4xI16xQQI", self.bytes, offset + i * size) for i in range(count))
        self.sections = list(headers)

    def _table(self, kind: int, entry: str) -> Iterator[tuple[tuple[int, ...], int]]:
        """The entries of the sections of a type, with the offset of the strings they name."""
        for section_kind, offset, size, link in self.sections:
            if section_kind == kind:
                for values in struct.iter_unpack(entry, self.bytes[offset : offset + size]):
                    yield values, self.sections[link][1]

    def _string(self, offset: int) -> str:
        return self.bytes[offset : self.bytes.index(b"\0", offset)].decode()

    def dynamic(self, tag: int) -> list[str]:
        return [self._string(strings + value) for (t, value), strings in self._table(SHT_DYNAMIC, "<qQ") if t == tag]

    def symbols(self, *, defined: bool) -> set[str]:
        table = self._table(SHT_DYNSYM, "<IBxHQQ")
        return {
            self._string(strings + name) for (name, _, section, *_), strings in table if bool(section) == defined
        } - {""}


def extension() -> Path:
    spec = importlib.util.find_spec("xeflash._core")
    assert spec and spec.origin
    return Path(spec.origin)


def is_sycls(symbol: str) -> bool:
    """SYCL's C++ names live in namespace sycl; its C entry points begin with __sycl."""
    return "4sycl" in symbol or symbol.startswith("__sycl")


if __name__ == "__main__":
    needed = Elf(Path(sys.argv[2]) if len(sys.argv) > 2 else extension()).symbols(defined=False)
    exported = Elf(Path(sys.argv[1])).symbols(defined=True)
    print("\n".join(sorted(needed & exported)))
    if missing := sorted(symbol for symbol in needed - exported if is_sycls(symbol)):
        sys.exit("not in " + sys.argv[1] + ":\n" + "\n".join(missing))
