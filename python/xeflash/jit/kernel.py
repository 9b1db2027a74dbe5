"""A kernel's source: a Config of named constants and one entry point around the packaged headers."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from xeflash.tune import shared
from xeflash.tune.desc import ALGORITHMS, AnyDesc, Config, Desc
from xeflash.tune.table import pick

ELEMENTS = {"float32": "float", "float16": "f16", "bfloat16": "bf16", "bool": "uint8_t"}
ELEMENTS |= {"": "void", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2", "int8": "int8_t"}
_CACHES = {"": "PlainCache", "paged": "PagedCache<{}>", "beam": "BeamCache"}
# Degree of exp2's polynomial: its error has to vanish in the rounding of P.
EXP2_DEGREE = {"float32": 6, "float16": 4, "bfloat16": 3}
_INCLUDE = re.compile(r'^#include "(.+?)"', re.MULTILINE)
_CPU_ISA = {"cpu-generic": 0, "cpu-avx512": 1, "cpu-avx512-bf16": 2, "cpu-amx-bf16": 3}


@dataclass(frozen=True)
class KernelSource:
    """Text and options for the compiler; `name` describes the kernel for people."""

    name: str
    text: str
    options: tuple[str, ...]
    config: Config
    arch: str  # the first that has the same code

    def digest(self, folder: Path) -> str:
        """Names the binary for the headers in `folder`: equal digests mean equal code."""
        parts = [self.text, digest_of_headers(folder, self), *self.options]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def render(desc: Desc, config: Config | None = None) -> KernelSource:
    """Writes the source of the kernel for `desc`; `config` replaces the tables' choice, for sweeps."""
    config = config or pick(desc)
    arch = kernels_arch(desc)
    score = list(desc.hooks)
    score += ["SlopesFromHere"] if desc.sums_slopes else []
    if desc.bias is not None:
        score.append(f"Bias<{ELEMENTS[desc.bias]}>")
    score += ["SlopesFromHere"] if desc.bias_gradient else []
    before = list(score)
    if desc.score_mod:
        score.append("ScoreMod<snippet::Snippet>")
    algorithm = ALGORITHMS[desc.algorithm]
    backward = algorithm.params == "BwdParams"
    snippets = bool(desc.score_mod or desc.mask_mod)
    params = "ScoreModParams" if snippets and algorithm.params == "FwdParams" else algorithm.params
    decode = desc.algorithm == "flash_decode"
    online = decode or desc.algorithm == "flash_fwd"
    lines = [
        *(f'#include "{header}.hpp"' for header in ("attention/config", *_header_of(desc.mask), *desc.headers)),
        *(['#include "attention/score_mod.hpp"'] if snippets else []),
        "namespace xeflash {",
        *(desc.score_mod.struct() if desc.score_mod else []),
        *(desc.score_mod.struct(desc.learned) if desc.score_mod and desc.learned else []),
        *(desc.mask_mod.condition() if desc.mask_mod else []),
        "struct Config {",
        f"  using Element = {ELEMENTS[desc.dtype]};",
        f"  using Mask = {_mask(desc)};",
        *(["  using Condition = snippet::Condition;"] if desc.mask_mod else []),
        f"  using ScoreVariant = Variant<{', '.join(score)}>;",
        *([f"  using BeforeScoreMod = Variant<{', '.join(before)}>;"] if desc.learned else []),
        *(["  using Learned = snippet::LearnedSnippet;"] if desc.learned else []),
        *([f"  using Softmax = {_softmax(desc, config)};"] if decode else []),
        *([] if decode else [f"  using Drop = {'Dropout' if desc.dropout else 'NoDropout'};"]),
        f"  using Cache = {_CACHES[desc.cache].format(desc.page_unit)};",
        f"  using CacheElement = {ELEMENTS[desc.cache_dtype or desc.dtype]};",
        f"  using ValueElement = {'nibbles' if desc.nibbles else 'CacheElement'};",
        f"  static constexpr bool cache_scales = {_cpp(desc.cache_scales)};",
        f"  static constexpr int head_dim = {desc.head_dim}, head_dim_v = {desc.head_dim_v};",
        f"  static constexpr int block_rows = {config.block_q}, block_columns = {config.block_k};",
        f"  static constexpr int block_v = {config.block_v}, parts = {config.parts};",
        *([f"  static constexpr int block_d = {config.block_d};"] if backward else []),
        *([f"  using BiasGradient = {ELEMENTS[desc.bias_gradient or '']};"] if backward else []),
        *([f"  using Result = {ELEMENTS['float32' if desc.adds_up else desc.dtype]};"] if backward or online else []),
        *([f"  static constexpr bool adds_up = {_cpp(desc.adds_up)};"] if backward or online else []),
        *([f"  static constexpr bool splits_keys = {_cpp(decode or desc.split_keys)};"] if online else []),
        *([f"  static constexpr bool sums_slopes = {_cpp(desc.sums_slopes)};"] if backward else []),
        f"  static constexpr bool packs_heads = {_cpp(desc.packed_heads)};",
        f"  static constexpr int exp2_degree = {EXP2_DEGREE[desc.dtype]};",
        *([f"  static constexpr int slack = {'0' if _holds_little(desc) else 'kSlack'};"] if online else []),
        "};",
        "}  // namespace xeflash",
        *(f"XF_KERNEL void {e}(xeflash::{params} p) {{ xeflash::{e}<xeflash::Config>(p); }}" for e in desc.entries),
        "",
    ]
    choices, options = backend_of(arch, desc.access, config)
    dims = f"d{desc.head_dim}" + (f"v{desc.head_dim_v}" if desc.head_dim_v != desc.head_dim else "")
    features = [name.lower() for name in desc.hooks]
    features += [desc.mask.lower()] if desc.mask != "Window" else []
    flags = ("dropout", "packed_heads", "split_keys", "sums_slopes", "adds_up")
    features += [name for name in flags if getattr(desc, name)]
    features += [f"bias.{desc.bias}"] if desc.bias else []
    features += [f"bias_gradient.{desc.bias_gradient}"] if desc.bias_gradient else []
    features += [f"score_mod.{desc.score_mod.digest()}"] if desc.score_mod else []
    features += [f"mask_mod.{desc.mask_mod.digest()}"] if desc.mask_mod else []
    features += [f"learned{desc.learned}"] if desc.learned else []
    features += ["unified_max"] if desc.unified_max else []
    features += [f"{desc.cache}{desc.page_unit}" if desc.cache == "paged" else desc.cache] if desc.cache else []
    features += [f"kv.{desc.cache_dtype}"] if desc.cache_dtype else []
    features += ["scales"] if desc.cache_scales else []
    features += ["v.4bits"] if desc.nibbles else []
    features += [desc.access] if desc.access not in ("", "block2d") else []
    if config.threads > 1:
        dims += f"t{config.threads}" + (f"k{config.turns}" if config.turns > 1 else "")
    name = "-".join([named_arch(desc), desc.algorithm, desc.dtype, dims, f"q{config.block_q}", *features])
    return KernelSource(name, "\n".join(choices + lines), options, config, arch)


def backend_of(arch: str, access: str, config: Config) -> tuple[list[str], tuple[str, ...]]:
    """Returns the first lines of a source for a backend, and its compiler options."""
    if arch in _CPU_ISA:
        choices = []
        # A memset travels through SPIR-V as an array of bytes, which the CPU driver takes apart into one store each.
        backend = ["-fno-builtin-memset", "-DXEFLASH_BACKEND_CPU=1", f"-DXEFLASH_CPU_ISA={_CPU_ISA[arch]}"]
        # Vectors of one size would become each other bit by bit, ints floats.
        backend += ["-fno-lax-vector-conversions"]
    else:
        xe = {"ARCH": arch, "ACCESS": access, "THREADS": config.threads, "TEAM": config.team}
        xe |= {"PAIRS": int(config.pairs), "TURNS": config.turns, "IN_ORDER": int(config.in_order)}
        xe |= {"SHARED_BYTES": shared.MOST_BYTES[arch]}
        # The part that all kernels share comes first, up to a declaration: the compiler keeps it.
        choices = ['#include "xe/system.hpp"', "namespace xeflash {}"]
        choices += [f"#define XEFLASH_XE_{name} {value}" for name, value in xe.items()]
        # One image, though only some of its kernels use fp16.
        backend = ["-fsycl-device-code-split=off", "-DXEFLASH_BACKEND_XE=1"]
    return choices, ("-std=c++20", "-DNDEBUG", "-Werror=return-type", *backend)


def kernels_arch(desc: AnyDesc) -> str:
    """Returns the first architecture that has the same code.

    Kernels learn the lanes and the shared memory of a GPU by it, which are the same of pvc and bmg; block messages say
    differently where their blocks lie.
    """
    if desc.arch == "pvc" and desc.access != "block2d":
        return "bmg"
    if desc.arch in ("cpu-avx512-bf16", "cpu-amx-bf16") and desc.dtype != "bfloat16":
        return "cpu-avx512"
    if desc.arch == "cpu-amx-bf16" and not ALGORITHMS[desc.algorithm].multiplies_tiles:
        return "cpu-avx512-bf16"
    return desc.arch


def named_arch(desc: AnyDesc) -> str:
    """Returns the architecture in a kernel's name; for GPUs it is the device's own."""
    code = kernels_arch(desc)
    return code if code in _CPU_ISA else desc.arch


def _holds_little(desc: Desc) -> bool:
    """Returns whether fp16 has to hold P times the scale of V, so that P must not exceed 1.

    Decoding divides the scales of 8 bits by the largest.
    """
    scaled = desc.nibbles or (desc.cache_scales and desc.algorithm != "flash_decode")
    return scaled and desc.dtype == "float16" and desc.arch not in _CPU_ISA


def _softmax(desc: Desc, config: Config) -> str:
    """Returns the type by which a decoding kernel finds the maximum.

    An assumed maximum is for P in fp32, which may be of any size, and is then as exact: 16 bits of the matrix unit
    round a P that is not 1, or do not hold it. The code for rows that are too far from it makes wide heads spill.
    """
    fits = desc.arch in _CPU_ISA or (config.block_q % 8 and max(desc.head_dim, desc.head_dim_v) <= 128)
    return "UnifiedMax" if desc.unified_max and fits else "OnlineSoftmax"


def _header_of(mask: str) -> tuple[str, ...]:
    """Returns the header of a mask that says more than a window.

    Other masks change without it, and their kernels stay what they are.
    """
    return () if mask == "Window" else (f"attention/{mask.lower()}",)


def _mask(desc: Desc) -> str:
    """Returns the type of a mask."""
    if desc.mask != "Listed":
        return desc.mask
    return "Listed<snippet::Condition>" if desc.mask_mod else "Listed<SeesAll>"


def _cpp(value: bool) -> str:
    return "true" if value else "false"


def headers_of(folder: Path, first: Iterable[str], on_cpu: bool) -> set[str]:
    """Returns all headers that a source includes, directly or not, of the one backend that it uses."""
    other = "xe/" if on_cpu else "cpu/"
    names: set[str] = set()
    found = set(first)
    while found:
        names |= found
        found = {name for one in found for name in _INCLUDE.findall(_header(folder / one))}
        found = {name for name in found - names if not name.startswith(other)}
    return names


def digest_of_headers(folder: Path, kernel: KernelSource) -> str:
    """Returns a digest of the names and texts of the headers that a kernel includes."""
    hasher = hashlib.sha256()
    for name in sorted(headers_of(folder, _INCLUDE.findall(kernel.text), "-DXEFLASH_BACKEND_CPU=1" in kernel.options)):
        hasher.update(f"{name}\0{_header(folder / name)}\0".encode())
    return hasher.hexdigest()


@functools.cache
def _header(path: Path) -> str:
    return path.read_text()
