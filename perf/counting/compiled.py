"""Counts of what the machine code of a kernel consists of, without running it."""

from __future__ import annotations

from typing import Any

from xeflash.jit.kernel import render
from xeflash.jit.offline import compile_offline
from xeflash.jit.product import render_product
from xeflash.sim.binary import compile_spirv, inspect
from xeflash.tune.desc import Config, Desc, ProductDesc


def kernels_of(desc: Desc | ProductDesc, config: Config | None = None) -> list[dict[str, Any]]:
    """Returns the counts of each kernel in a native binary, with these tiles or those of the tables."""
    source = render(desc, config) if isinstance(desc, Desc) else render_product(desc, config)
    binary = compile_spirv(desc.arch, compile_offline(source).binary, "-vc-codegen -doubleGRF")
    return inspect(desc.arch, binary)


def kernel_of(desc: Desc | ProductDesc, config: Config | None = None) -> dict[str, Any]:
    """Returns the counts of the first kernel of a description."""
    return next(kernel for kernel in kernels_of(desc, config) if desc.entries[0] in kernel["name"])
