"""The default kernels, for the build.

usage: kernels.py OFF SOURCE_FOLDER OUTPUT_FOLDER         their sources; prints "arch|name|digest|option..." a line each
       kernels.py ON SOURCE_FOLDER OUTPUT_FOLDER          the same of a release
       kernels.py PATTERN SOURCE_FOLDER OUTPUT_FOLDER     those of a release whose names match, beside the few
       kernels.py pack SOURCE_FOLDER ARCHIVE BINARY...    what was compiled of an architecture
"""

import re
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
    few, of_release = (list(map(render, prebuilt.default_set(of_release=x))) for x in (False, True))
    wanted = {"OFF": few, "ON": of_release}.get(what) or [*few, *(x for x in of_release if re.match(what, x.name))]
    for kernel in wanted:
        digest = kernel.digest(source / "kernels")
        path = output / f"{digest}.cpp"
        if not path.exists() or path.read_text() != kernel.text:
            path.write_text(kernel.text)
        lines.add("|".join([kernel.arch, kernel.name, digest, *kernel.options]))
    sys.stdout.write("\n".join(sorted(lines)))
