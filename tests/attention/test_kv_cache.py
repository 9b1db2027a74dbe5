"""Attention on caches of every kind against the reference, over every pair of choices."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
import xeflash
from arrays import DTYPES, from_array, is_on_gpu, sparse, to_array
from caches import FORMATS, LENGTHS, WINDOWS, CacheCase, is_possible, run
from cover import cover, each, elements, few, few_rows, kind_of_dims, with_wide
from pairwise import pairwise
from plain import check_rows_first
from room import need_memory
from tolerance import by_rule
from xeflash.selftest.arrays import TorchArrays
from xeflash.selftest.reference import Features, to_float64
from xeflash.selftest.values import Values

KERNELS = [("fp32", 64, 64), ("bf16", 80, 80), ("bf16", 128, 128), ("bf16", 576, 512), ("fp16", 64, 64)]
KERNELS += [("fp16", 256, 256)]
PLACES = {
    "plain": ("plain", "index", "pad", "pad"),
    "paged": ("paged16", "paged64", "paged256", "paged48"),
    "beam": ("beams1", "beams2", "beams4", "beams5"),
}
CHOICES = {
    "kernel": [(*kernel, rows) for kernel in KERNELS for rows in (1, 5)],  # which are algorithms of their own
    "lengths": list(LENGTHS),
    "heads": ["32/32", "32/8", "40/10", "8/1", "6/2"],
    "cache": list(PLACES),
    "place": [0, 1, 2, 3],
    "format": ["same", *FORMATS, "e4m3.array", "int8.array"],
    "new": [0, 1, 5],
    "rotary": ["none", "pairs", "halves"],
    "window": list(WINDOWS),
    "variant": ["plain", "softcap", "alibi"],
    "sinks": [False, True],
    "splits": [0, 1, 2, 3, 7, 32],
    "seqlens": ["array", "int"],
    "kind": ["torch", "numpy"],
    "lse": [True, False],
}


def case_of(row):
    row = dict(row)
    dtype, dim, dim_v, rows = row.pop("kernel")
    place = PLACES[row.pop("cache")][row.pop("place")]
    return CacheCase(dtype, dim, dim_v, rows=rows, place=place, **row)


def kind_of_place(case):
    return next((name for name in ("paged", "beam") if case.place.startswith(name)), "plain")


def kernel_of(case):
    """What a kernel is compiled for, about."""
    tile = case.heads if case.rows == 1 else case.rows
    return case.dtype, case.dim, kind_of_place(case), case.format, case.variant, tile


FEATURES = ("dtype", "dims", "rows", "place", "format", "variant")


def choices_of(case):
    same = ("dtype", "rows", "variant", "lengths", "heads", "rotary", "window", "sinks", "splits", "seqlens")
    found = {name: getattr(case, name) for name in (*same, "kind", "lse")}
    found["algorithm"] = "decode" if case.rows == 1 else "forward"
    found["format"], _, scales = case.format.partition(".")
    found["scales"] = scales or "number"
    return found | {"place": kind_of_place(case), "dims": kind_of_dims(case.dim, case.dim_v), "new": case.new > 0}


CASES = [
    case_of(row)
    for row in pairwise(CHOICES, lambda row: is_possible(case_of(row)), lambda row: kernel_of(case_of(row)))
]

# The default set: each type with each format, for one query and for several, as these are kernels of their own. What else is
# compiled comes in turn, so that each format meets each place; most of fp32, and what is plain, are kernels of other tests.
OF_TYPES = {
    ("fp32", 64, 64): "plain-same plain-same-softcap plain-same-alibi paged-same beam-same beam-e5m2 plain-int8.array "
    "paged-e4m3.array",
    ("bf16", 64, 64): "plain-same paged-e5m2-softcap+alibi",
    ("bf16", 576, 512): "plain-e4m3-softcap+alibi beam-int8.array-softcap+alibi",
    ("fp16", 64, 64): "plain-same plain-e5m2-softcap+alibi",
    ("fp16", 256, 256): "paged-int8 beam-e4m3.array-softcap+alibi",
}
COMPILED = [
    dict(zip(("kernel", "cache", "format", "variant"), ((*kernel, rows), *f"{word}-plain".split("-")), strict=False))
    for kernel, words in OF_TYPES.items()
    for word in words.split()
    for rows in (1, 5)
]
OTHERS = {name: values for name, values in CHOICES.items() if name not in COMPILED[0]}


def default_case_of(row):
    return case_of({name: value for name, value in row.items() if name != "compiled"} | row["compiled"])


def is_wanted(case):
    """Few of them append, have negative scales, or share no heads: each is one more kernel."""
    same = case.format == "same"
    few = case.splits != 3 or case.variant != "plain" or (same and case.dtype == "fp32" and case.place == "plain")
    few = few and (same or case.rows == 1 or case.heads != "32/32")
    return is_possible(case) and few and (not case.new or same or (case.dtype == "fp32" and case.format != "e5m2"))


CANDIDATES = [
    default_case_of(row)
    for row in pairwise({"compiled": COMPILED} | OTHERS, lambda row: is_wanted(default_case_of(row)))
]
# So that no other choice asks for a kernel, the usual ones meet each.
for dtype, rows, new in product(DTYPES, (1, 5), (0, 5)):
    usual = CacheCase(dtype, lengths="eight" if not new else "70,9", rows=rows, heads="8/1", new=new)
    CANDIDATES += filter(is_wanted, each(usual, {name: OTHERS[name] for name in OTHERS if name != "place"}))


def is_shared(kernel):
    """Whether other tests have it, too."""
    dtype, dim, place, form, variant, tile = kernel
    return (dim, form) == (64, "same") and (place != "beam" or tile != 5) and (variant == "plain" or dtype == "fp32")


DEFAULT = cover(CANDIDATES, lambda case: elements(choices_of(case), FEATURES), kernel_of, is_shared=is_shared)


@pytest.mark.parametrize("case", with_wide(dict.fromkeys([*DEFAULT, *CASES]), DEFAULT))
def test_matches_reference(case):
    run(case)


# ---- on GPUs ------------------------------------------------------------------------------------

# (dtype, head dims, place, format, rows, heads, what else is compiled for it; "many": keys that threads take in turns): each
# place with each format, which dealing.py deals so that each device has all of both and all types; each type has all of both on some device.
GPU_KERNELS = [
    ("fp32", 64, 64, "paged16", "e4m3", 1, "6/2", "append unified"),
    ("fp16", 576, 512, "paged64", "int8", 1, "8/1", "unified"),
    ("bf16", 256, 256, "paged256", "e5m2", 1, "8/1", "many"),
    ("fp32", 80, 80, "paged32", "same", 1, "6/2", "negative many"),
    ("bf16", 64, 64, "beams5", "e4m3.array", 1, "6/2", "append negative"),
    ("fp32", 64, 64, "beams4", "int8.array", 1, "2/2", "unified"),
    ("fp16", 96, 96, "beams2", "e5m2.array", 5, "6/2", "append"),
    ("bf16", 64, 64, "beams2", "same", 5, "8/1", "many"),
    ("fp16", 128, 128, "index", "e4m3", 1, "8/1", "append negative"),
    ("bf16", 80, 80, "plain", "int8.array", 5, "6/2", ""),
    ("fp32", 192, 128, "pad", "e5m2", 5, "6/2", "append"),
    ("fp16", 80, 80, "pad", "same", 5, "6/2", "append"),
]
GPU_CHOICES = {
    "kernel": GPU_KERNELS,
    "lengths": ["1", "0,17", "129,0,700", "70,9"],
    "new": [0, 1, 5],
    "rotary": ["none", "pairs", "halves"],
    "window": list(WINDOWS),
    "sinks": [False, True],
    "splits": [0, 1, 2, 3],
    "unified": [None, 5.0],
    "seqlens": ["array", "int"],
    "lse": [True, False],
}


def gpu_case_of(row):
    row = dict(row)
    dtype, dim, dim_v, place, form, rows, heads, _ = row.pop("kernel")
    variant = "softcap" if dim == 96 else "alibi" if place == "index" else "plain"
    return CacheCase(dtype, dim, dim_v, rows=rows, heads=heads, place=place, format=form, variant=variant, kind="gpu",
                     **row)  # fmt: skip


def is_wanted_on_gpu(row):
    case, more = gpu_case_of(row), row["kernel"][-1]
    if case.new and "append" not in more:
        return False
    compiled = {
        "negative": case.splits == 3,
        "unified": case.unified is not None,
        "many": max(case.cached.lengths) > 512,
    }
    return is_possible(case) and all((name in more) == wanted for name, wanted in compiled.items())


GPU_CASES = [gpu_case_of(row) for row in pairwise(GPU_CHOICES, is_wanted_on_gpu)]


@pytest.mark.gpu
@pytest.mark.parametrize("case", GPU_CASES, ids=lambda case: case.id)
def test_matches_reference_on_gpu(gpu, case):
    run(case)


QUANTISED = CacheCase("fp16", 128, 128, place="index", format="e4m3", heads="8/1", lengths="70,9", variant="alibi")


@pytest.mark.gpu
@pytest.mark.parametrize("keys", few([480, 960], 480))  # threads take more in turns
@pytest.mark.parametrize("case", [QUANTISED], ids=lambda case: case.id)  # whose kernel this is
def test_a_quantised_cache_is_read_once_on_gpu(gpu, case, keys):
    """As the bytes that it has, for all heads that share it."""
    from xeflash import sim

    if not sim.enabled():
        pytest.skip("only a simulator counts bytes")
    dim = case.dim
    q, k, v = torch.randn(1, 1, 8, dim), torch.randn(1, keys, 1, dim), torch.randn(1, keys, 1, dim)
    arrays = [to_array(x, "gpu") for x in (q.half(), k.to(torch.float8_e4m3fn), v.to(torch.float8_e4m3fn))]
    slopes = to_array(torch.zeros(8), "gpu")
    from_array(xeflash.flash_attn_with_kvcache(*arrays, num_splits=1, alibi_slopes=slopes), "gpu")
    (launch,) = sim.last_launches()
    needed = 2 * keys * dim
    of_q = launch.threads * 8 * dim * 2
    assert needed <= launch.global_read <= 1.01 * needed + of_q


# ---- paged variable-length sequences ------------------------------------------------------------


@pytest.mark.parametrize("window", ["causal", "window"])
@pytest.mark.parametrize("lengths_by", ["starts", "used", "both"])
@pytest.mark.parametrize(("dtype", "rows"), [("fp32", 9), ("bf16", 70), ("bf16", 1)])
def test_varlen_pages(dtype, rows, lengths_by, window):
    check_varlen_pages(dtype, rows, lengths_by, window, "torch")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "rows", "lengths_by", "window"),
    few_rows([("bf16", 70, "used", "causal"), ("fp16", 9, "both", "window")], ("bf16", 70, "used", "causal")),
)
def test_varlen_pages_on_gpu(gpu, dtype, rows, lengths_by, window):
    check_varlen_pages(dtype, rows, lengths_by, window, "gpu")


def check_varlen_pages(dtype, rows, lengths_by, window, kind):
    case = CacheCase(dtype=dtype, place="paged16", lengths="129,0,700", window=window, rows=rows).cached
    cache, tensors = case.cache(np.random.default_rng(1)), TorchArrays("cpu")
    k, v, table = (tensors.put(x) for x in (*cache.arrays, Values.of(cache.tables["block_table"], "int32")))
    lengths_q = [rows, 0, min(rows, 33)]
    cu_q = torch.tensor([0, *lengths_q]).cumsum(0).int()
    room = 5 if lengths_by == "both" else 0  # of which seqused_k takes nothing
    cu_k = torch.tensor([0, *(n + room for n in case.lengths)]).cumsum(0).int()
    q = torch.randn(sum(lengths_q), 6, 64).to(DTYPES[dtype])
    arrays = (q, k, v, cu_q, None if lengths_by == "used" else cu_k)
    out, lse, none = xeflash.flash_attn_varlen_func(
        *(*(to_array(x, kind) for x in arrays), rows, 705),
        causal=window == "causal",
        window_size=(-1, -1) if window == "causal" else case.window,
        return_attn_probs=True,
        block_table=to_array(table, kind),
        seqused_k=None if lengths_by == "starts" else to_array(torch.tensor(case.lengths, dtype=torch.int32), kind),
    )
    assert none is None
    out, lse = from_array(out, kind), from_array(lse, kind)
    for b in range(3):
        part = slice(cu_q[b], cu_q[b + 1])
        check_sequence(case, b, cache, q[part], Features(window=case.window), out[part], lse[None, :, part], kind)


def check_sequence(case, b, cache, q, f, out, lse, kind):
    """q and out (rows, H, D), lse (1, H, rows), for the keys that are in the cache."""
    for finding in case.judge(b, cache, to_float64(q), f, to_float64(out), to_float64(lse), is_on_gpu(kind), by_rule):
        assert finding.ok, finding


# ---- splits -------------------------------------------------------------------------------------


@pytest.mark.parametrize("splits", [2, 5, 31, 128])
def test_any_number_of_splits_gives_the_same(splits):
    q, k, v = torch.randn(2, 1, 6, 64), torch.randn(2, 777, 2, 64), torch.randn(2, 777, 2, 64)
    options = {"cache_seqlens": torch.tensor([777, 20], dtype=torch.int32), "return_softmax_lse": True}
    one = xeflash.flash_attn_with_kvcache(q, k, v, num_splits=1, **options)
    many = xeflash.flash_attn_with_kvcache(q, k, v, num_splits=splits, **options)
    for a, b in zip(one, many, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-6)


@pytest.mark.parametrize(("splits", "sinks"), [(1, True), (4, False)])
@pytest.mark.parametrize("dtype", few(DTYPES, "fp32", "bf16"))
@pytest.mark.parametrize("far", [0.0, 12.0, 60.0, -60.0, 200.0, -200.0])
def test_unified_maximum_is_as_exact_wherever_the_scores_are(far, dtype, splits, sinks):
    check_unified_maximum(far, dtype, splits, sinks, "torch")


@pytest.mark.parametrize("dtype", few(DTYPES, "fp32", "bf16"))
@pytest.mark.parametrize("far", [1e4, -1e4])
def test_unified_maximum_far_away(far, dtype):
    check_unified_maximum(far, dtype, 4, False, "torch")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "splits", "sinks"), few_rows([("fp32", 4, False), ("bf16", 1, True)], ("bf16", 1, True))
)
def test_unified_maximum_is_as_exact_on_gpu(gpu, dtype, splits, sinks):
    for far in (0.0, 12.0, 60.0, -60.0, 200.0, -200.0):
        check_unified_maximum(far, dtype, splits, sinks, "gpu")


def check_unified_maximum(far, dtype, splits, sinks, kind):
    """Scores are moved away from the assumed maximum, for one of two sequences; the other sees no key in most splits."""
    q, k, v = torch.randn(2, 1, 4, 64), torch.randn(2, 333, 2, 64), torch.randn(2, 333, 2, 64)
    q[..., 0], k[..., 0] = 1.0, 0.0
    k[0, :, :, 0] = far
    q, k, v = (x.to(DTYPES[dtype]) for x in (q, k, v))
    lengths, f = [333, 20], Features(scale=1.0, sinks=torch.randn(4) if sinks else None)
    out, lse = xeflash.flash_attn_with_kvcache(
        *(to_array(x, kind) for x in (q, k, v)),
        cache_seqlens=to_array(torch.tensor(lengths, dtype=torch.int32), kind),
        softmax_scale=1.0,
        num_splits=splits,
        s_aux=to_array(f.sinks, kind),
        return_softmax_lse=True,
        unified_max=5.0,
    )
    out, lse = from_array(out, kind), from_array(lse, kind)
    for b, n in enumerate(lengths):
        qkv, part = (q[b : b + 1], k[b : b + 1, :n], v[b : b + 1, :n]), slice(b, b + 1)
        check_rows_first(f"far {far}, sequence {b}", qkv, out[part], lse[part], f, is_on_gpu(kind))


# ---- memory far apart ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "rows"),
    few_rows(product(("plain", "paged16", "beams2"), (1, 6)), ("plain", 6), ("paged16", 6), ("beams2", 1)),
)
def test_cache_beyond_4_gib(place, rows):
    """Places of the cache are more than 4 GiB apart; only what is used exists."""
    case = CacheCase(dtype="fp32", place=place, lengths="70,9", rows=rows, new=2).cached
    cache, tensors = case.cache(np.random.default_rng(2)), TorchArrays("cpu")
    far = []
    for near in (tensors.put(x) for x in cache.arrays):
        far.append(sparse(near.shape, ((2**32 + 64) // 4, *near.stride()[1:]), near.dtype))
        for i, j in cache.places:
            far[-1][i, j] = near[i, j]
    q = torch.randn(2, rows, 6, 64)
    k, v = torch.randn(2, 2, 2, 64), torch.randn(2, 2, 2, 64)
    tables = {name: tensors.put(Values.of(x, "int32")) for name, x in cache.tables.items()}
    lengths = torch.tensor([68, 7], dtype=torch.int32)
    out, lse = xeflash.flash_attn_with_kvcache(q, *far, k, v, cache_seqlens=lengths, return_softmax_lse=True, **tables)
    for new, x, held in zip((k, v), far, cache.arrays, strict=True):
        for b, (i, j) in enumerate(cache.places):
            assert torch.equal(x[i[-2:], j[-2:]], new[b])
            held.bits[i, j] = x[i, j].numpy()
    for b in range(2):
        check_sequence(case, b, cache, q[b], Features(), out[b], lse[b : b + 1], "torch")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case",
    [
        replace(QUANTISED, new=2),
        CacheCase("fp32", place="paged16", format="e4m3", lengths="70,9", new=2, unified=5.0),
        pytest.param(CacheCase("fp32", 80, 80, place="paged32", lengths="70,9"), marks=pytest.mark.wide),
        pytest.param(
            CacheCase("bf16", place="beams2", heads="8/1", lengths="70,9", rows=5, new=2), marks=pytest.mark.wide
        ),
    ],
    ids=lambda case: case.id,
)
def test_cache_beyond_4_gib_on_gpu(gpu, case):
    """Keys are used that lie 4.1 GiB behind the beginning of a pool."""
    import usm

    cached, tensors = case.cached, TorchArrays("cpu")
    cache = cached.cache(np.random.default_rng(0))
    gap = int(4.1 * 2**30 / max(i.max() for i, _ in cache.places)) // 64 * 64
    near = [tensors.put(x) for x in cache.arrays]
    need_memory(2 * gap * (len(near[0]) - 1), "xpu")
    tables = {name: Values.of(x, "int32") for name, x in cache.tables.items()}
    tables["cache_seqlens"] = Values.of(np.array(cached.lengths) - cached.new, "int32")
    arrays = {name: to_array(tensors.put(x), "usm") for name, x in tables.items()}
    arrays |= {"k_scale": cache.scales[0], "v_scale": cache.scales[1], "unified_max": case.unified}
    f = Features(alibi=torch.rand(cached.heads[0]) if case.variant == "alibi" else None)
    arrays["alibi_slopes"] = to_array(f.alibi, "usm")
    try:
        far = [usm.far_apart(x, usm.gpu_queue(), 0, gap) for x in near]
    except usm.dpctl.memory.USMAllocationError:
        pytest.skip("the device has no 5 GiB in one allocation")
    q = torch.randn(2, case.rows, cached.heads[0], case.dim).to(DTYPES[case.dtype])
    if case.new:
        new = [torch.randn(2, 2, cached.heads[1], case.dim).to(q.dtype) for _ in range(2)]
        arrays |= {name: to_array(x, "usm") for name, x in zip("kv", new, strict=True)}
        for x, held, scale in zip(new, cache.arrays, cache.scales, strict=True):
            for b, (i, j) in enumerate(cache.places):
                held.bits[i[-2:], j[-2:]] = Values.of(to_float64(x[b]) / (scale or 1.0), held.dtype).bits
    out, lse = xeflash.flash_attn_with_kvcache(to_array(q, "usm"), *far, **arrays, return_softmax_lse=True)
    out, lse = from_array(out, "usm"), from_array(lse, "usm")
    for b in range(2):
        check_sequence(cached, b, cache, q[b], f, out[b], lse[b : b + 1], "usm")


def test_strided_cache_is_used_where_it_is():
    """Heads outside of rows, as other libraries keep their caches: nothing is copied, new keys arrive."""
    k_cache, v_cache = (torch.randn(2, 2, 40, 64).transpose(1, 2) for _ in range(2))
    q, k, v = torch.randn(2, 1, 6, 64), torch.randn(2, 1, 2, 64), torch.randn(2, 1, 2, 64)
    out = xeflash.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=30)
    assert torch.equal(k_cache[:, 30], k[:, 0]) and torch.equal(v_cache[:, 30], v[:, 0])
    check_rows_first("strided", (q, k_cache[:, :31], v_cache[:, :31]), out)


def test_beams_begin_behind_their_padding():
    q, k_cache, v_cache = torch.randn(2, 1, 4, 64), torch.randn(2, 40, 2, 64), torch.randn(2, 40, 2, 64)
    beams = torch.randint(0, 2, (2, 40)).int()
    lengths, pad = torch.tensor([30, 37]).int(), torch.tensor([4, 9]).int()
    out = xeflash.flash_attn_with_kvcache(
        q, k_cache, v_cache, cache_seqlens=lengths, cache_leftpad=pad, beam_index=beams
    )
    for b in range(2):
        i = torch.arange(int(pad[b]), int(lengths[b]))
        k, v = (x[beams[b, i].long(), i][None] for x in (k_cache, v_cache))
        check_rows_first(f"sequence {b}", (q[b : b + 1], k, v), out[b : b + 1])
