"""The default kernels, for the build.

usage: kernels.py few SOURCE_FOLDER OUTPUT_FOLDER         their sources; prints "arch|name|digest|option..." a line each
       kernels.py all SOURCE_FOLDER OUTPUT_FOLDER         the same of a release
       kernels.py pack SOURCE_FOLDER ARCHIVE BINARY...    what was compiled of an architecture
"""

import sys
import types
from pathlib import Path

what, *folders = sys.argv[1:]
source, output = map(Path, folders[:2])

# The modules that describe kernels need nothing but Python; the package itself would import the extension that is
# about to be built.
for name in ("xeflash", "xeflash.jit"):
    package = types.ModuleType(name)
    package.__path__ = [str(source / "python" / name.replace(".", "/"))]
    sys.modules[name] = package

from xeflash.jit import prebuilt  # noqa: E402
from xeflash.jit.kernel import render  # noqa: E402

if what == "pack":
    prebuilt.write(output, map(Path, folders[2:]))
else:
    output.mkdir(parents=True, exist_ok=True)
    lines = set()
    for kernel in map(render, prebuilt.default_set(of_release=what == "all")):
        digest = kernel.digest(source / "kernels")
        path = output / f"{digest}.cpp"
        if not path.exists() or path.read_text() != kernel.text:
            path.write_text(kernel.text)
        lines.add("|".join([kernel.arch, kernel.name, digest, *kernel.options]))
    sys.stdout.write("\n".join(sorted(lines)))
