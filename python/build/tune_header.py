"""Writes a C++ header of what the extension has to know of tune/: python tune_header.py OUT.hpp."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import package

package.stand_in(Path(__file__).parents[2])

from xeflash.tune.desc import ALGORITHMS  # noqa: E402
from xeflash.tune.schedule import ProductSchedule, Schedule  # noqa: E402

HEADER = """\
// What tune/desc.py and tune/schedule.py say, as python/build/tune_header.py wrote it.
#pragma once

#include <cstdint>

#include "host/device/fields.hpp"

namespace xeflash {{

enum class Algorithm : uint8_t {{ {algorithms} }};
inline const char* name_of(Algorithm algorithm) {{
  constexpr const char* kNames[] = {{{names}}};
  return kNames[static_cast<uint8_t>(algorithm)];
}}

{structs}
}}  // namespace xeflash
"""


def struct_of(numbers: type[Schedule | ProductSchedule]) -> str:
    """Returns a struct of C++ with the same members."""
    fields = dataclasses.fields(numbers)
    assert {field.type for field in fields} <= {"int", "bool"}, "types that C++ has by the same name"
    members = "".join(f"  {field.type} {field.name};\n" for field in fields)
    names = ", ".join(field.name for field in fields)
    return f"struct {numbers.__name__} {{\n{members}}};\nXF_FIELDS({numbers.__name__}, {names});\n"


def header() -> str:
    """Returns the text of the header."""
    return HEADER.format(
        algorithms=", ".join(ALGORITHMS),
        names=", ".join(f'"{name}"' for name in ALGORITHMS),
        structs="\n".join(map(struct_of, (Schedule, ProductSchedule))),
    )


if __name__ == "__main__":
    out, text = Path(sys.argv[1]), header()
    if not out.exists() or out.read_text() != text:  # an unchanged header compiles nothing anew
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text)
