"""The default kernels, for the build.

usage: kernels.py OFF SOURCE_FOLDER OUTPUT_FOLDER         their sources; prints "arch|name|digest|option..." a line each
       kernels.py ON SOURCE_FOLDER OUTPUT_FOLDER          the same of a release
       kernels.py PATTERN SOURCE_FOLDER OUTPUT_FOLDER     those of a release whose names match, beside the few
       kernels.py pack SOURCE_FOLDER ARCHIVE BINARY...    what was compiled of an architecture
"""

import re
import sys
from pathlib import Path

import package

what, *folders = sys.argv[1:]
source, output = map(Path, folders[:2])

package.stand_in(source)

from xeflash.jit import prebuilt  # noqa: E402
from xeflash.jit.kernel import render  # noqa: E402

if what == "pack":
    prebuilt.write(output, map(Path, folders[2:]))
else:
    output.mkdir(parents=True, exist_ok=True)
    lines = set()
    few, released = (list(map(render, prebuilt.default_set(release=x))) for x in (False, True))
    wanted = {"OFF": few, "ON": released}.get(what) or [*few, *(x for x in released if re.match(what, x.name))]
    for kernel in wanted:
        digest = kernel.digest(source / "kernels")
        path = output / f"{digest}.cpp"
        if not path.exists() or path.read_text() != kernel.text:
            path.write_text(kernel.text)
        lines.add("|".join([kernel.arch, kernel.name, digest, *kernel.options]))
    sys.stdout.write("\n".join(sorted(lines)))
