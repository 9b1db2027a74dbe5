"""Compiles the source of a kernel to SPIR-V for the build.

usage: spirv.py COMPILER_VERSION SPIRV LIBSYCL_JIT SOURCE OUTPUT OPTION...

Where XEFLASH_BUILD_CACHE names a folder, what was compiled is kept there, and not compiled again by the next build. A
source is named by a digest of all that it is compiled from, so its name and the compiler's version say what it becomes.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

version, spirv, library, source, output, *options = sys.argv[1:]
folder = os.environ.get("XEFLASH_BUILD_CACHE")
kept = Path(folder, f"{Path(source).stem}-{version}.spv") if folder else None

if kept and kept.exists():
    shutil.copyfile(kept, output)
    sys.exit()
if code := subprocess.call([spirv, library, source, output, *options]):
    sys.exit(code)
if kept:
    kept.parent.mkdir(parents=True, exist_ok=True)
    handle, aside = tempfile.mkstemp(dir=kept.parent)
    os.close(handle)
    shutil.copyfile(output, aside)
    os.replace(aside, kept)  # whole, as several builds may do this at once
