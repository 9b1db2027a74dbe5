"""Prints "<include folder>;<library folder>;<version>" of the intel-sycl-rt that this interpreter sees.

A build in isolation passes its own environment by PYTHONPATH, so this works there, in a venv, in conda and with --user.
"""

import importlib.metadata
import os
import sys

distribution = importlib.metadata.distribution("intel-sycl-rt")
include = library = None
for file in distribution.files or []:
    if file.as_posix().endswith("include/sycl/sycl.hpp"):
        include = os.path.dirname(os.path.dirname(os.path.realpath(str(file.locate()))))
    elif file.name == "libsycl-jit.so":
        library = os.path.dirname(os.path.realpath(str(file.locate())))
if not (include and library):
    sys.exit(f"intel-sycl-rt {distribution.version} has no headers or no libsycl-jit.so")
sys.stdout.write(f"{include};{library};{distribution.version}")
