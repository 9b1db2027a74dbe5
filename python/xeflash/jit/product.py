"""Sources of kernels of products: of few rows, with softmax, and of a language model's head."""

from __future__ import annotations

from xeflash.jit.kernel import ELEMENTS, EXP2_DEGREE, KernelSource, backend_of, kernels_arch, named_arch
from xeflash.tune.desc import ALGORITHMS, Config, ProductDesc, SoftmaxDesc
from xeflash.tune.products import pick_head, pick_product, pick_softmax

_WEIGHTS = ELEMENTS | {"uint8": "packed4"}


def render_product(desc: ProductDesc, config: Config | None = None) -> KernelSource:
    """Writes the source of the kernel for `desc`; `config` replaces the tables' choice, for sweeps."""
    config = config or pick_product(desc)
    weight, scale = _WEIGHTS[desc.weight or desc.dtype], ELEMENTS[desc.scale or ""]
    lines = [
        f"  using Weights = xeflash::Weights<{weight}, {scale}, {desc.group}>;",
        f"  static constexpr int rows = {config.block_q}, outputs = {config.block_v};",
        f"  static constexpr int inputs = {config.block_k or '0x7fffffff'};",
        f"  using Result = {ELEMENTS['float32' if desc.wide else desc.dtype]};",
    ]
    sizes = f"r{config.block_q}n{config.block_v}" + (f"t{config.threads}" if config.threads > 1 else "")
    features = [f"w.{desc.weight}", f"g{desc.group}", f"s.{desc.scale}"] if desc.weight else []
    features += ["wide"] if desc.wide else []
    return _source(desc, config, lines, [sizes, *features])


def render_softmax(desc: SoftmaxDesc, config: Config | None = None) -> KernelSource:
    """Writes the source of a kernel for a product whose rows become their softmax."""
    config = config or pick_softmax(desc)
    one_step = not desc.more_inputs and config.block_k == desc.inputs
    lines = [
        f"  using Bias = {ELEMENTS[desc.bias or '']};",
        f"  static constexpr int rows = {config.block_q}, columns = {config.block_v};",
        f"  static constexpr int inputs = {config.block_k}, products = {config.products};",
        f"  static constexpr int exp2_degree = {EXP2_DEGREE[desc.dtype]};",
        f"  static constexpr bool one_step = {'true' if one_step else 'false'};",
    ]
    sizes = f"r{config.block_q}n{config.block_v}k{config.block_k}" + ("" if one_step else "m")
    features = [f"p{config.products}"] + ([f"bias.{desc.bias}"] if desc.bias else [])
    return _source(desc, config, lines, [sizes, *features])


def render_head(desc: SoftmaxDesc, config: Config | None = None) -> KernelSource:
    """Writes the source of a kernel of a language model's head."""
    config = config or pick_head(desc)
    lines = [
        f"  static constexpr int rows = {config.block_q}, columns = {config.block_v}, inputs = {config.block_k};",
    ]
    threads = f"t{config.threads}" if config.threads > 1 else ""
    return _source(desc, config, lines, [f"r{config.block_q}n{config.block_v}k{config.block_k}{threads}"])


def _source(desc: ProductDesc | SoftmaxDesc, config: Config, constants: list[str], names: list[str]) -> KernelSource:
    """Writes the source of a product's kernel from the lines of its Config and the words of its name."""
    arch, algorithm = kernels_arch(desc), ALGORITHMS[desc.algorithm]
    choices, options = backend_of(arch, desc.access, config)
    lines = [
        *(f'#include "{header}.hpp"' for header in algorithm.headers),
        "namespace xeflash {",
        "struct Config {",
        f"  using Element = {ELEMENTS[desc.dtype]};",
        *constants,
        "};",
        "}  // namespace xeflash",
        *(
            f"XF_KERNEL void {e}(xeflash::{algorithm.params} p) {{ xeflash::{e}<xeflash::Config>(p); }}"
            for e in desc.entries
        ),
        "",
    ]
    access = [desc.access] if desc.access not in ("", "block2d") else []
    name = "-".join([named_arch(desc), desc.algorithm, desc.dtype, *names, *access])
    return KernelSource(name, "\n".join(choices + lines), options, config, arch)
