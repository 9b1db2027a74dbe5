"""What a call asks for is the same whether it runs or is only described, on arrays without memory (jit/calls.py)."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import xeflash
from arrays import to_array
from xeflash import _core
from xeflash.call.schema import BSHD
from xeflash.jit.calls import kernels_of
from xeflash.jit.precompile import target
from xeflash.runtime.interop import Placeholder
from xeflash.tune.desc import desc_of

DIM, DIM_V = 144, 112  # no other test has both: a kernel that is there already would not be asked for


@pytest.fixture(params=["torch", pytest.param("usm", marks=pytest.mark.gpu)])
def kind(request):
    """Of arrays, see arrays.to_array."""
    return request.param


@pytest.fixture
def arch(request, kind):
    """Of the device that they are on."""
    return request.getfixturevalue("gpu") if kind == "usm" else target("cpu").arch


# Queries, keys, heads of them to one of K and V; how far the rows of arrays are too long; what the call says.
CALLS = {
    "prompt": (20, 40, 1, 0, {}),
    "long": (300, 40, 4, 0, {"softcap": 2.0}),
    "few-queries": (9, 40, 4, 0, {"softmax_scale": -1.0}),
    "few-queries-alibi": (3, 40, 4, 0, {"alibi_slopes": True}),
    "dropout": (1, 40, 4, 0, {"dropout_p": 0.5}),
    "one-query": (1, 40, 4, 0, {"softcap": 2.0, "softmax_scale": -1.0}),
    "17-heads": (1, 40, 17, 0, {}),
    "few-tiles": (20, 5000, 1, 0, {}),
    "strided": (20, 40, 1, 1, {}),
    "dwords": (20, 40, 1, 2, {}),
    "cache": (20, 48, 4, 0, {"cache": True}),
}


def call_of(make, queries, keys, group, gap, options):
    """The call with arrays of `make(shape, dtype, gap)`."""
    given = {"function": "test", "layout": BSHD, "q": make((1, queries, 2 * group, DIM), "float16", gap), **options}
    names = ("k", "v")
    if given.pop("cache", False):
        given["block_table"], names = make((1, 3), "int32", 0), ("k_cache", "v_cache")
        shapes = ((3, 16, 2, DIM), (3, 16, 2, DIM_V))
    else:
        shapes = ((1, keys, 2, DIM), (1, keys, 2, DIM_V))
    given |= {name: make(shape, "float16", gap) for name, shape in zip(names, shapes, strict=True)}
    if options.get("alibi_slopes"):
        given["alibi_slopes"] = make((2 * group,), "float32", 0)
    return lambda: _core.forward(**given)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_runs_asks_for_what_it_is_described_by(name, kind, arch, asked):
    def in_memory(shape, dtype, gap):
        wide = torch.zeros((*shape[:-1], shape[-1] + gap), dtype=getattr(torch, dtype))
        return to_array(wide[..., : shape[-1]], kind)

    got = asked(call_of(in_memory, *CALLS[name]))
    units = next(d["compute_units"] for d in _core.devices() if d["arch"] == arch)
    told = [got["device"], got["driver"]]
    (desc,) = kernels_of(call_of(Placeholder, *CALLS[name]), arch, units, *told)
    assert replace(desc, score_mod=None) == desc_of(got | {"score_mod": None})


def gradients(rows, heads, *, wanted):
    arrays = {name: Placeholder((1, rows, heads, DIM), "bfloat16") for name in ("q", "k")}
    arrays |= {name: Placeholder((1, rows, heads, DIM_V), "bfloat16") for name in ("v", "out", "dout")}
    arrays |= {"lse": Placeholder((1, heads, rows), "float32"), "s_aux": Placeholder((heads,), "float32")}
    return lambda: _core.backward(function="test", layout=BSHD, wanted=wanted, **arrays)


@pytest.mark.parametrize(
    "arch, units, names",
    [
        ("cpu-avx512-bf16", 1, ["flash_bwd", "flash_bwd_heads"]),
        ("cpu-avx512-bf16", 64, ["flash_bwd_dq", "flash_bwd_dkv", "flash_bwd_heads"]),
        ("cpu-amx-bf16", 1, ["flash_bwd_dq", "flash_bwd_dkv", "flash_bwd_heads"]),
        ("bmg", 1, ["flash_bwd_dq", "flash_bwd_dkv", "flash_bwd_heads"]),
    ],
)
def test_all_kernels_of_gradients_are_described(arch, units, names):
    descs = kernels_of(gradients(128, 8, wanted=("q", "k", "v", "s_aux")), arch, units)
    assert [desc.algorithm for desc in descs] == names and {desc.arch for desc in descs} == {arch}
    assert descs[0].rows == (32 if units > 1 else 128)


def test_what_is_refused_is_so_when_described():
    with pytest.raises(NotImplementedError, match="multiple of 8"):
        kernels_of(lambda: _core.forward(**one_head(59)), "bmg", 1)
    x = np.ones((1, 1, 4, 8), np.float32)
    assert xeflash.attention(x, x, x).shape == x.shape  # and calls run again


def one_head(dim):
    return {"function": "test", "layout": BSHD} | {name: Placeholder((1, 40, 1, dim), "float16") for name in "qkv"}
