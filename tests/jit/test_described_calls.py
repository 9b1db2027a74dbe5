"""The descriptions that xeflash.jit.calls makes are those of the extension."""

import os
from dataclasses import replace

import pytest
import torch
import xeflash
from arrays import to_array
from xeflash import _core, tune
from xeflash.call.schema import BSHD
from xeflash.jit.calls import describe, describe_backward
from xeflash.jit.precompile import target
from xeflash.jit.provide import provide
from xeflash.tune.desc import Desc


class Described(Exception):
    pass


@pytest.fixture
def described():
    """What the extension asks of Python for a call whose kernels it has not seen; the call ends there.

    Kernels of the algorithm `after` are given to it, so that it asks for the next one.
    """
    given = set()

    def by(call, /, *arguments, after="", **more):
        given.add(after)
        with pytest.raises(Described) as asked:
            call(*arguments, **more)
        given.clear()
        return replace(asked.value.args[0], device="", driver="")

    def refuse(values, queue, again=False):
        if values["algorithm"] in given:
            return provide(values, queue, again)
        raise Described(Desc.from_dict(values))

    _core.set_kernel_provider(refuse)
    yield by
    _core.set_kernel_provider(provide)


@pytest.fixture(params=["torch", pytest.param("usm", marks=pytest.mark.gpu)])
def kind(request):
    """Of arrays, see arrays.to_array."""
    return request.param


@pytest.fixture
def arch(request, kind):
    """Of the device that they are on."""
    return request.getfixturevalue("gpu") if kind == "usm" else target("cpu").arch


def zeros(kind, *shape, dtype=torch.float16):
    return to_array(torch.zeros(shape, dtype=dtype), kind)


def lowered(desc, got):
    """Where tiles are few for the cores of this machine, they are lower."""
    is_lower = desc.arch.startswith("cpu-") and 32 <= got.rows < desc.rows
    return replace(desc, rows=got.rows) if is_lower else desc


DIM, DIM_V = 144, 112  # no other test has both: a kernel that is there already would not be asked for

# Queries, heads of them to one of K and V, what the call says, and what `describe` is told.
CALLS = {
    "prompt": (20, 1, {}, {}),
    "long": (300, 4, {"softcap": 2.0}, {"hooks": ("SoftCap",)}),
    "few-queries": (9, 4, {"softmax_scale": -1.0}, {"negative_scale": True}),
    "few-queries-alibi": (3, 4, {"alibi_slopes": True}, {"hooks": ("Alibi",)}),
    "dropout": (1, 4, {"dropout_p": 0.5}, {"dropout": True}),
    "one-query": (1, 4, {"softcap": 2.0, "softmax_scale": -1.0}, {"hooks": ("SoftCap",), "negative_scale": True}),
    "17-heads": (1, 17, {}, {}),
    "few-tiles": (20, 1, {"keys": 5000}, {"few_tiles": True}),
    "strided": (20, 1, {"stride": 1}, {"access": "elements"}),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_are_described_as_the_extension_does(name, kind, arch, described):
    queries, group, options, told = CALLS[name]
    options = dict(options)
    keys, more = options.pop("keys", 40), options.pop("stride", 0)

    def heads(rows, count, dim):
        return to_array(torch.zeros(1, rows, count, dim + more, dtype=torch.float16)[..., :dim], kind)

    if options.get("alibi_slopes"):
        options["alibi_slopes"] = zeros(kind, 2 * group, dtype=torch.float32)
    got = described(
        xeflash.flash_attn_func, heads(queries, 2 * group, DIM), heads(keys, 2, DIM), heads(keys, 2, DIM_V), **options
    )
    assert got == lowered(describe(arch, "float16", DIM, DIM_V, queries, group, **told), got)


@pytest.mark.parametrize("queries", [1, 20])
@pytest.mark.parametrize("page", [0, 16, 48, 128])
def test_calls_with_a_cache_are_described_as_the_extension_does(queries, page, kind, arch, described):
    caches = [zeros(kind, 3, page or 40, 2, dim, dtype=torch.float8_e5m2) for dim in (DIM, DIM_V)]
    table = to_array(torch.zeros(1, 2, dtype=torch.int32), kind) if page else None
    q = zeros(kind, 1 if page else 3, queries, 8, DIM)
    got = described(
        xeflash.flash_attn_with_kvcache, q, *caches, cache_seqlens=20, block_table=table, k_scale=1.0, v_scale=1.0
    )
    features = {"cache": "paged" if page else "", "page": page, "cache_dtype": "float8_e5m2"}
    assert got == lowered(describe(arch, "float16", DIM, DIM_V, queries, 4, **features), got)


# Queries, keys, their heads, what the call says, and what is wanted.
GRADIENTS = {
    "flash_bwd_dq": (300, 40, 1, {"softcap": 2.0}, {"hooks": ("SoftCap",)}),
    "flash_bwd_dkv": (20, 40, 1, {}, {}),
    "flash_bwd": (20, 100, os.sysconf("SC_NPROCESSORS_CONF"), {"softmax_scale": -1.0}, {"negative_scale": True}),
    "attention_probs": (
        40,
        70,
        1,
        {"dropout_p": 0.5, "softmax_scale": -1.0},
        {"dropout": True, "negative_scale": True},
    ),
}


@pytest.mark.parametrize("algorithm", GRADIENTS)
def test_gradients_are_described_as_the_extension_does(algorithm, kind, arch, described):
    queries, keys, heads, options, told = GRADIENTS[algorithm]
    if algorithm == "flash_bwd" and not tune.schedule(arch).one_pass:
        pytest.skip("no kernel makes all gradients there")
    q, k, v = zeros(kind, 1, queries, heads, DIM), zeros(kind, 1, keys, heads, DIM), zeros(kind, 1, keys, heads, DIM_V)
    call = {"function": "test", "layout": BSHD, "q": q, "k": k, "v": v, **options}
    call["lse"] = zeros(kind, 1, heads, queries, dtype=torch.float32)
    if algorithm == "attention_probs":
        got = described(_core.probabilities, **call)
    else:
        after = "flash_bwd_dq" if algorithm == "flash_bwd_dkv" else ""
        out, dout = (zeros(kind, 1, queries, heads, DIM_V) for _ in range(2))
        wanted = ("q", "k", "v") if algorithm == "flash_bwd" else ("k", "v")
        got = described(_core.backward, out=out, dout=dout, wanted=wanted, after=after, **call)
    assert got == lowered(describe_backward(algorithm, arch, "float16", DIM, DIM_V, queries, keys, **told), got)
