"""The tiles of the backward pass find room in shared memory, for every head dim; xeflash/tune/shared.py counts it as
the compiler does."""

import dataclasses
import itertools

import pytest
from xeflash.jit.kernel import render
from xeflash.jit.offline import compile_offline
from xeflash.tune import pick, shared, xe, xe_shares
from xeflash.tune.desc import Desc

DIMS = [(dim, dim) for dim in range(8, xe_shares.MAX_HEAD_DIM + 1, 8)]
DIMS += [(192, 128), (576, 512), (128, 192), (512, 576), (320, 256), (40, 576), (576, 40)]
CAP = {"hooks": ("SoftCap",)}
CHANGES = [{}, CAP, {"bias": "float32"}, CAP | {"bias": "bfloat16"}, {"dropout": True}]
TILES = {"flash_bwd_dq": "DqTiles<{}>", "flash_bwd_dkv": "DkvTiles<{}>"}
TILES |= {"flash_bwd_bias": "ScoreTiles<{}, true>", "attention_probs": "ScoreTiles<{}>"}


def descriptions(arch, only_access=None, all_rows=(8, 16, 32, 64, 128), dims=DIMS, changes=tuple(CHANGES)):
    accesses = ("dwords", "elements") if arch == "dg2" else ("block2d", "dwords", "elements")
    for algorithm, access, dtype, rows, (dim, dim_v), change in itertools.product(
        TILES, [only_access] if only_access else accesses, ("float32", "bfloat16", "float16"), all_rows, dims, changes
    ):
        # A block of keys and of values in fp32 is too large for dg2: see the test of what has no room.
        if arch == "dg2" and dtype == "float32" and max(dim, dim_v) >= 296:
            continue
        more = {"bias_gradient": "float32"} if algorithm == "flash_bwd_bias" else {}
        yield Desc(algorithm, arch, dtype, dim, dim_v, rows, access=access, **change, **more)


def counted(desc, config):
    c, blocks = config, (config.block_q, config.block_k)
    if desc.algorithm == "flash_bwd_dq":
        return shared.bytes_of_dq(desc, *blocks, c.threads, c.team, c.block_d)
    if desc.algorithm == "flash_bwd_dkv":
        return shared.bytes_of_dkv(desc, *blocks, c.threads, c.team, c.block_d, c.block_v, c.pairs)
    return shared.bytes_of_scores(desc, *blocks, c.threads)


@pytest.mark.parametrize("arch", xe.ARCHITECTURES)
def test_every_head_dim_finds_room(arch):
    for desc in descriptions(arch):
        assert counted(desc, pick(desc)) <= shared.MOST_BYTES[arch], desc


@pytest.mark.parametrize("algorithm", TILES)
def test_what_has_no_room_is_refused_by_name(algorithm):
    more = {"bias_gradient": "float32"} if algorithm == "flash_bwd_bias" else {}
    with pytest.raises(NotImplementedError, match=f"^xeflash: {algorithm} .* of dg2, got q.head_dim 576 .* in float32"):
        pick(Desc(algorithm, "dg2", "float32", 576, 576, 32, access="dwords", **more))


def check_compiled(arch, **which):
    sources = {}  # by what all kernels of a source have in common
    for desc in descriptions(arch, **which):
        kernel = render(desc)
        defines, rest = kernel.text.split('#include "attention/config.hpp"')
        config = "struct Config" + rest.partition("struct Config")[2].partition("\n};\n")[0] + "\n};"
        sources.setdefault((defines, kernel.config.threads), []).append((desc, kernel, config))
    for (defines, _), kernels in sources.items():
        lines = [defines, *(f'#include "{h}.hpp"' for h in ("attention/config", "attention/backward"))]
        lines.append("namespace xeflash {")
        for i, (desc, kernel, config) in enumerate(kernels):
            size = TILES[desc.algorithm].format(f"Config{i}") + "::kBytes"
            lines.append(config.replace("struct Config", f"struct Config{i}"))
            lines.append(f'static_assert({size} <= kMostSharedBytes, "{kernel.name}");')
            lines.append(f'static_assert({size} == {counted(desc, kernel.config)}, "{kernel.name}");')
        lines.append("}  // namespace xeflash\nXF_KERNEL void nothing(int* p) { *p = 0; }\n")
        compile_offline(dataclasses.replace(kernels[0][1], text="\n".join(lines)))


@pytest.mark.parametrize("arch", ["pvc", "dg2"])  # bmg has the code of pvc
def test_the_compiler_counts_the_same(arch):
    check_compiled(arch, only_access="dwords", all_rows=(32,), dims=[(256, 256)], changes=({},))


@pytest.mark.long
@pytest.mark.parametrize("arch", xe.ARCHITECTURES)
def test_the_compiler_counts_the_same_of_all(arch):
    check_compiled(arch, all_rows=(8, 16, 32, 128))
