"""Caches with V in 4 bits: what is appended, number by number, and attention against the values that the cache holds."""

import math
import struct
from itertools import product

import pytest
import torch
import xeflash
from arrays import DTYPES, from_array, is_on_gpu, to_array
from cover import few_rows
from pairwise import pairwise
from specs import cached, run
from xeflash.selftest.attention.nibbles import unpacked
from xeflash.selftest.attention.spec import is_possible

# ---- bytes that are appended, against a packer of single numbers -----------------------------------


def as_half(x):
    """The nearest number in fp16."""
    return struct.unpack("<e", struct.pack("<e", x))[0]


def pack_row(row):
    """The bytes of a row of floats, and its scales."""
    data, scales = bytearray(len(row) // 2), []
    for unit in range(len(row) // 64):
        values = row[unit * 64 : unit * 64 + 64]
        largest = max(values) if max(values) >= -min(values) else min(values)
        scale = as_half(max(-65504.0, min(65504.0, -largest / 8)))
        for column, x in enumerate(values):
            q = max(-8, min(7, round(x / scale))) if scale else 0  # to even, where two are as near
            word, shift = column % 16, column // 16 * 4
            data[unit * 32 + word * 2 + shift // 8] |= (q + 8) << shift % 8
        scales.append(scale)
    return bytes(data), scales


def rows_of(kind, count, dim):
    """Values whose units are usual, all zero, with one huge element, with the most negative one first, or of few steps."""
    x = torch.randn(count, dim)
    if kind == "zeros":
        x[::2, :64] = 0
    if kind == "huge":
        x[:, 5] = 30000.0
        x[::3, 5] = -30000.0
    if kind == "tiny":
        x *= 1e-6  # scales are fp16's denormals, or 0
    if kind == "ties":
        x = torch.randint(-16, 17, (count, dim)) / 2.0
        x[:, ::64] = 8.0
    return x


def check_bytes(kind, array, dtype, dim, page, heads=2):
    """Sequences of 1 to 40 new values, in pages in any order; others are left as they are."""
    lengths = [1, 40, 17, 16]
    before = [3, 0, 15, 31]
    most, pages = max(n + b for n, b in zip(lengths, before, strict=True)), 16 * 4
    per = -(-most // page)
    table = torch.randperm(pages)[: 4 * per].view(4, per).to(torch.int32)
    k_cache = torch.full((pages, page, heads, 128), 7, dtype=torch.int8)
    v_cache = torch.full((pages, page, heads, dim // 2), 0xFF, dtype=torch.uint8)
    k_scale = torch.full((pages, page, heads), 3.0)
    v_scale = torch.full((pages, page, heads, dim // 64), math.nan, dtype=torch.float16)
    want_v, want_scale = v_cache.clone(), v_scale.clone()
    caches = [to_array(x, array) for x in (k_cache, v_cache, k_scale, v_scale, table)]
    for b, (count, first) in enumerate(zip(lengths, before, strict=True)):
        values = rows_of(kind, count * heads, dim).to(DTYPES[dtype]).view(1, count, heads, dim)
        q = torch.zeros(1, 0, heads, 128, dtype=values.dtype)
        k = torch.zeros(1, count, heads, 128, dtype=values.dtype)
        new = [to_array(x, array) for x in (q, k, values, torch.tensor([first], dtype=torch.int32))]
        row = to_array(table[b : b + 1].clone(), array)
        xeflash.flash_attn_with_kvcache(
            new[0], caches[0], caches[1], new[1], new[2],
            cache_seqlens=new[3], block_table=row, k_scale=caches[2], v_scale=caches[3],
        )  # fmt: skip
        for i, head in product(range(count), range(heads)):
            place = (int(table[b, (first + i) // page]), (first + i) % page, head)
            data, scales = pack_row(values[0, i, head].tolist())
            want_v[place] = torch.tensor(list(data), dtype=torch.uint8)
            want_scale[place] = torch.tensor(scales, dtype=torch.float16)
    if is_on_gpu(array):
        v_cache, v_scale = (from_array(x, array) for x in (caches[1], caches[3]))
    assert torch.equal(v_cache, want_v)
    assert torch.equal(torch.nan_to_num(v_scale, 99.0), torch.nan_to_num(want_scale, 99.0))


KINDS = ("usual", "zeros", "huge", "tiny", "ties")


@pytest.mark.parametrize("page", [16, 48])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "dim"), few_rows(product(("bf16", "fp16"), (64, 128, 256)), ("bf16", 128)))
def test_appended_bytes(dtype, dim, kind, page):
    check_bytes(kind, "torch", dtype, dim, page)


@pytest.mark.gpu
@pytest.mark.wide
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "dim"), few_rows(product(("bf16", "fp16"), (64, 128, 256)), ("bf16", 128)))
def test_appended_bytes_on_gpu(gpu, dtype, dim, kind):
    check_bytes(kind, "gpu", dtype, dim, 16)


@pytest.mark.parametrize("array", ["torch", pytest.param("gpu", marks=[pytest.mark.gpu, pytest.mark.wide])])
def test_slots_are_written(array, request):
    if array == "gpu":
        request.getfixturevalue("gpu")
    k, v = (torch.randn(5, 2, 128).bfloat16() for _ in range(2))
    slots = torch.tensor([17, -1, 3, 40, 0])
    k_cache, k_scale = torch.zeros(3, 16, 2, 128, dtype=torch.int8), torch.zeros(3, 16, 2)
    v_cache = torch.zeros(3, 16, 2, 64, dtype=torch.uint8)
    v_scale = torch.zeros(3, 16, 2, 2, dtype=torch.float16)
    arrays = [to_array(x, array) for x in (k, v, k_cache, v_cache, slots, k_scale, v_scale)]
    xeflash.write_to_cache(*arrays[:5], k_scale=arrays[5], v_scale=arrays[6])
    if is_on_gpu(array):
        v_cache, v_scale = (from_array(x, array) for x in (arrays[3], arrays[6]))
    want, scales = torch.zeros_like(v_cache).view(48, 2, 64), torch.zeros_like(v_scale).view(48, 2, 2)
    for token, slot in enumerate(slots.tolist()):
        for head in range(2) if slot >= 0 else ():
            data, of_units = pack_row(v[token, head].tolist())
            want[slot, head] = torch.tensor(list(data), dtype=torch.uint8)
            scales[slot, head] = torch.tensor(of_units, dtype=torch.float16)
    assert torch.equal(v_cache.view(48, 2, 64), want) and torch.equal(v_scale.view(48, 2, 2), scales)


def test_every_nibble_is_read_as_its_number():
    """With one key a result is its value."""
    q, k = torch.zeros(4, 1, 8, 128).bfloat16(), torch.zeros(4, 16, 2, 128, dtype=torch.int8)
    values = torch.arange(256, dtype=torch.int32).to(torch.uint8).repeat(2).view(4, 1, 2, 64)
    scales = torch.tensor([1.0, -0.5, 2.0, 0.25]).half().repeat(4).view(4, 1, 2, 2)
    pages = torch.arange(4, dtype=torch.int32)[:, None]
    v_cache, v_scale = torch.full((4, 16, 2, 64), 0xFF, dtype=torch.uint8), torch.full((4, 16, 2, 2), math.nan).half()
    v_cache[:, :1], v_scale[:, :1] = values, scales
    out = xeflash.flash_attn_with_kvcache(
        q, k, v_cache, k_scale=torch.ones(4, 16, 2), v_scale=v_scale, block_table=pages,
        cache_seqlens=torch.ones(4, dtype=torch.int32),
    )  # fmt: skip
    want = torch.from_numpy(unpacked(values.numpy(), scales.numpy())).repeat_interleave(4, 2)
    assert torch.equal(out.double(), want)


# ---- attention ------------------------------------------------------------------------------------

CHOICES = {
    "dtype": ["bf16", "fp16"],
    "dims": [(64, 64), (128, 128), (128, 64), (96, 192), (192, 128), (256, 256), (512, 512)],
    "heads": [(1, 1), (8, 2), (8, 1), (16, 1), (32, 2), (4, 4)],
    "rows": [1, 2, 5, 33],
    "place": ["plain", "paged16", "paged48", "paged64", "pad", "index"],
    "format": ["int8.nibbles", "e4m3.nibbles"],
    "keys": [(1, 17, 40), (129, 40, 300), (700, 33, 16)],
    "splits": [0, 1, 3],
    "window": ["full", "causal", "31,5"],
    "variant": ["plain", "softcap", "alibi"],
    "sinks": [False, True],
    "new": [0, 1],
}


def case_of(row, kind="torch"):
    row = dict(row)
    dims = row.pop("dims")
    return cached(row.pop("dtype"), *dims, kind=kind, **row)


ROWS = list(pairwise(CHOICES, lambda row: is_possible(case_of(row))))
OF_FEW = [
    {"dtype": "bf16", "dims": (128, 128), "heads": (8, 2), "format": "int8.nibbles", "rows": rows, **more}
    for rows, more in (
        (1, {"place": "paged48", "keys": (129, 40, 300), "new": 1, "window": "causal", "sinks": True}),
        (5, {"place": "paged48", "keys": (129, 40, 300), "window": "causal"}),
    )
]
CASES = [*(case_of(row) for row in OF_FEW), *(pytest.param(case_of(row), marks=pytest.mark.wide) for row in ROWS)]
OF_DEVICES = (  # dealing.py gives each device one
    {"place": "paged48", "keys": (129, 40, 300), "new": 1, "window": "causal", "sinks": True},
    {"place": "plain", "keys": (129, 40, 300), "rows": 5, "window": "causal"},
    {"place": "plain", "keys": (129, 40, 300), "format": "e4m3.nibbles", "window": "31,5"},
)
ON_GPU = [case_of(OF_FEW[0] | {"new": 0, "sinks": False} | more, "gpu") for more in OF_DEVICES]


def is_in_registers(row):
    """Whether the simulator runs it: it stops kernels that spill: these do, by 64 to 128 bytes."""
    return row["dims"] != (512, 512) or row["variant"] == "plain"


ON_GPU += [pytest.param(case_of(row, "gpu"), marks=pytest.mark.wide) for row in ROWS if is_in_registers(row)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_matches_reference(case):
    run(case)


@pytest.mark.gpu
@pytest.mark.parametrize("case", ON_GPU, ids=lambda case: case.id)
def test_matches_reference_on_gpu(gpu, case):
    run(case)


# ---- what is refused ------------------------------------------------------------------------------


def arguments(dtype="bfloat16", dim=64, dim_v=64, k="int8", v="uint8", **more):
    numbers = {"q": torch.zeros(1, 1, 2, dim, dtype=getattr(torch, dtype))}
    numbers["k_cache"] = torch.zeros(1, 16, 2, dim, dtype=getattr(torch, k))
    numbers["v_cache"] = torch.zeros(1, 16, 2, dim_v // 2, dtype=getattr(torch, v))
    numbers["k_scale"] = torch.ones(1, 16, 2)
    numbers["v_scale"] = torch.ones(1, 16, 2, dim_v // 64, dtype=torch.float16)
    return numbers | more


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"dtype": "float32"}, "q must be float16 or bfloat16 with v_cache of uint8"),
        ({"k": "bfloat16", "k_scale": None}, "k_cache must be int8 or an 8-bit float with v_cache of uint8"),
        ({"dim": 80}, "k_cache.head_dim must be a multiple of 32 with v_cache of uint8"),
        ({"dim_v": 96, "v_scale": torch.ones(1, 16, 2, 1).half()}, "v_cache.head_dim must be a multiple of 64"),
        ({"v_scale": 1.0}, "v_scale must be fp16 of shape [1, 16, 2, 1]"),
        ({"v_scale": None}, "v_scale must be fp16 of shape [1, 16, 2, 1]"),
        ({"v_scale": torch.ones(1, 16, 2)}, "v_scale must be float16"),
        ({"v_scale": torch.ones(1, 16, 2).half()}, "v_scale must be fp16 of shape [1, 16, 2, 1]"),
        ({"k_scale": None}, "k_scale must be given with int8"),
        ({"beam_index": torch.zeros(1, 16, dtype=torch.int32)}, "beam_index must be None with v_cache of uint8"),
        ({"k": "uint8"}, "k_cache must have the dtype of q"),
    ],
)
def test_refusals(given, rule):
    with pytest.raises((ValueError, TypeError, NotImplementedError)) as found:
        xeflash.flash_attn_with_kvcache(**arguments(**given))
    assert rule in str(found.value)
