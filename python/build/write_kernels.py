"""Writes the sources of the default kernels for the build; prints "name|option|option..." a line each.

usage: write_kernels.py SOURCE_FOLDER OUTPUT_FOLDER
"""

import sys
import types
from pathlib import Path

source, output = Path(sys.argv[1]), Path(sys.argv[2])

# The modules that describe kernels need nothing but Python; the package itself would import the extension that is
# about to be built.
for name in ("xeflash", "xeflash.jit"):
    package = types.ModuleType(name)
    package.__path__ = [str(source / "python" / name.replace(".", "/"))]
    sys.modules[name] = package

from xeflash.jit.kernel import render  # noqa: E402
from xeflash.jit.prebuilt import default_set  # noqa: E402

output.mkdir(parents=True, exist_ok=True)
headers, lines = source / "kernels", []
for desc in default_set():
    kernel = render(desc)
    name = f"{kernel.name}-{kernel.digest(headers)}"
    path = output / f"{name}.cpp"
    if not path.exists() or path.read_text() != kernel.text:
        path.write_text(kernel.text)
    lines.append("|".join([name, *kernel.options]))
sys.stdout.write("\n".join(dict.fromkeys(lines)))
