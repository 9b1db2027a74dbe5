"""Numbers at the ends of a type's range: finite ones give finite, right results, what is not finite reaches the rows
that see it. Both in every way in which a call divides its work."""

import numpy as np
import pytest
import torch
import xeflash
from arrays import DTYPES, from_array, to_array
from cover import few
from tolerance import check_attention
from xeflash.selftest.reference import Features, to_float64

INF, NAN = float("inf"), float("nan")
LARGEST = {name: torch.finfo(dtype).max for name, dtype in DTYPES.items()}
HEADS, HEADS_K, KEYS, DIM, PAGE = 4, 2, 300, 64, 64
# How many rows, and what divides the work.
FORMS = {
    "many rows": (70, {}),
    "few rows": (5, {}),  # GPUs take turns at the keys
    "packed sequences": (37, {}),
    "one row": (1, {"num_splits": 1}),
    "splits": (1, {"num_splits": 3}),
    "pages": (1, {"num_splits": 2}),
    "unified maximum": (1, {"num_splits": 2, "unified_max": 3.0}),
}
IN_16_BITS = ("many rows", "few rows", "splits")
# The others run on GPUs in the wide set: a simulated one takes seconds for a kernel.
GPU_TESTS = ("few rows", "splits")


@pytest.fixture(params=["torch", pytest.param("gpu", marks=pytest.mark.gpu)])
def kind(request):
    if request.param == "gpu":
        request.getfixturevalue("gpu")
    return request.param


forms = pytest.mark.parametrize("form", FORMS)
forms_and_types = pytest.mark.parametrize(
    ("form", "dtype"),
    [(form, dtype) for form in FORMS for dtype in ("fp32", "bf16") if dtype == "fp32" or form in IN_16_BITS],
)


def draw(form, dtype, seed=0):
    """q, k, v of (B, H, S, D)."""
    torch.manual_seed(seed)
    shapes = [(1, HEADS, FORMS[form][0], DIM), (1, HEADS_K, KEYS, DIM), (1, HEADS_K, KEYS, DIM)]
    return [torch.randn(shape).to(DTYPES[dtype]) for shape in shapes]


def attend(form, kind, q, k, v, features=Features()):
    """out (B, H, S, D) and LSE of a form, with the features that all have."""
    options = FORMS[form][1] | {"softmax_scale": features.scale, "softcap": features.softcap}
    options |= {"s_aux": None if features.sinks is None else to_array(features.sinks, kind)}
    q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
    rows, keys = q.shape[1], k.shape[1]
    if form == "packed sequences":
        starts = [to_array(torch.tensor([0, n], dtype=torch.int32), kind) for n in (rows, keys)]
        arrays = [to_array(x[0], kind) for x in (q, k, v)]
        result = xeflash.flash_attn_varlen_func(*arrays, *starts, rows, keys, return_attn_probs=True, **options)
        out, lse = (from_array(x, kind)[None] for x in result[:2])
    elif rows > 1:
        result = xeflash.flash_attn_func(*(to_array(x, kind) for x in (q, k, v)), return_attn_probs=True, **options)
        out, lse = (from_array(x, kind) for x in result[:2])
    else:
        if form == "pages":
            order = torch.randperm(-(-keys // PAGE))
            k, v = (torch.nn.functional.pad(x[0], (0, 0, 0, 0, 0, -keys % PAGE), value=NAN) for x in (k, v))
            k, v = (x.view(-1, PAGE, *x.shape[1:])[torch.argsort(order)].contiguous() for x in (k, v))
            options |= {"block_table": to_array(order.int()[None], kind)}
            options |= {"cache_seqlens": to_array(torch.tensor([keys], dtype=torch.int32), kind)}
        arrays = [to_array(x, kind) for x in (q, k, v)]
        result = xeflash.flash_attn_with_kvcache(*arrays, return_softmax_lse=True, **options)
        out, lse = (from_array(x, kind) for x in result)
    return out.transpose(1, 2), lse


def check(case, form, kind, q, k, v, features=Features()):
    out, lse = attend(form, kind, q, k, v, features)
    check_attention(case, q, k, v, features, out, lse, gpu=kind == "gpu")
    return out, lse


# ---- finite -------------------------------------------------------------------------------------


@forms_and_types
def test_large_scores(form, kind, dtype):
    q, k, v = draw(form, dtype)
    for size in (1e5, 1e9, 1e12, 1e36):
        out, _ = check(f"{size}", form, kind, q * size, k, v)
        assert torch.isfinite(out).all()


@forms_and_types
def test_scales_from_end_to_end(form, kind, dtype):
    """The largest leave the value of the largest score, the least ones the mean."""
    q, k, v = draw(form, dtype)
    scores = to_float64(q) @ np.repeat(to_float64(k), HEADS // HEADS_K, axis=1).swapaxes(-1, -2)
    values = np.repeat(to_float64(v), HEADS // HEADS_K, axis=1)
    best = np.take_along_axis(values, np.argmax(scores, axis=-1)[..., None], axis=2)
    for scale in (1e30, 3.4e38, 1e-38, 1e-45):
        out, _ = attend(form, kind, q, k, v, Features(scale=scale))
        want = best if scale > 1 else values.mean(axis=2, keepdims=True)
        np.testing.assert_allclose(to_float64(out), np.broadcast_to(want, out.shape), rtol=0, atol=1e-2)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "unified maximum"])  # 3, here, is far from all
def test_a_scale_of_zero_gives_each_key_the_same_weight(form, kind):
    q, k, v = draw(form, "fp32")
    for keys in (1, KEYS):
        check(f"{keys} keys", form, kind, q, k[:, :, :keys], v[:, :, :keys], Features(scale=0.0))


@forms
def test_equal_scores_share_their_weight(form, kind):
    """However large they are, and however many keys each split has."""
    q, k, v = draw(form, "fp32")
    k = torch.ones_like(k)
    k[:, :, ::3] = -1
    seen = torch.arange(KEYS) % 3 != 0
    want = v[:, :, seen].double().mean(dim=2, keepdim=True).repeat_interleave(HEADS // HEADS_K, dim=1)
    for size in (1.0, 3e4, 1e15, 1e30):
        out, _ = attend(form, kind, torch.full_like(q, size), k, v)
        torch.testing.assert_close(out.double(), want.expand(out.shape), rtol=0, atol=1e-6)


@forms_and_types
def test_the_largest_values(form, kind, dtype):
    q, k, v = draw(form, dtype)
    largest = LARGEST[dtype]
    if kind == "gpu" and dtype == "fp32":
        largest /= 256 * KEYS  # without headroom, see Exponents
    v = (torch.rand_like(v) * 2 - 1) * largest
    out, _ = check("random", form, kind, q, k, v)
    assert torch.isfinite(out).all()
    out, _ = attend(form, kind, q, k, torch.full_like(v, largest * 0.99))
    torch.testing.assert_close(out.double() / largest, torch.full_like(out.double(), 0.99), rtol=0.01, atol=0)


@forms_and_types
def test_sinks_from_end_to_end(form, kind, dtype):
    q, k, v = draw(form, dtype)
    for sink in (100.0, 3.4e38):
        check(f"{sink}", form, kind, q, k, v, Features(sinks=torch.tensor([sink, 0.0, -sink, -INF])))


@pytest.mark.parametrize("form", ["one row", "few rows"])
def test_softcaps_from_end_to_end(form, kind):
    """The least one leaves nothing of scores, the largest one all."""
    q, k, v = draw(form, "fp32")
    for softcap in (1e-45, 1e-30, 1e30, 3.4e38):
        out, lse = attend(form, kind, q, k, v, Features(softcap=softcap))
        same = Features(scale=None if softcap > 1 else 1e-30)
        check_attention(f"{softcap}", q, k, v, same, out, lse, gpu=kind == "gpu")


@pytest.mark.parametrize("rows", [1, 5])
def test_biases_from_end_to_end(kind, rows):
    q, k, v = draw("one row", "fp32")
    q = torch.randn(1, HEADS, rows, DIM)
    lowest = torch.finfo(torch.float32).min
    for base, other in [(0.0, lowest), (lowest, lowest), (-1e38, -3e38), (3e38, -3e38), (lowest, -INF), (-INF, -INF)]:
        bias = torch.full((rows, KEYS), base)
        bias[:, ::3] = other
        arrays = [to_array(x, kind) for x in (q, k, v)]
        out, lse = xeflash.attention(*arrays, to_array(bias, kind), enable_gqa=True, return_lse=True)
        features = Features(mask=bias, empty_lse=-INF)
        check_attention(
            f"{base} {other}", q, k, v, features, from_array(out, kind), from_array(lse, kind), gpu=kind == "gpu"
        )


@pytest.mark.parametrize(("options", "message"), [
    ({"softmax_scale": 1e39}, "softmax_scale must be finite in float32, got 1e[+]39"),
    ({"softcap": 3.5e38}, "softcap must be 0 .off. or positive and finite in float32, got 3.5e[+]38"),
    ({"unified_max": -1e39}, "unified_max must be finite in float32, got -1e[+]39"),
    ({"k_scale": 1e39}, "k_scale must be positive and finite in float32, got 1e[+]39"),
    ({"v_scale": 1e-46}, "v_scale must be positive and finite in float32, got 1e-46"),
    ({"score_mod": "s + a", "captures": {"a": 1e39}}, r'captures\["a"\] must be finite in float32, got 1e\+39'),
])  # fmt: skip
def test_numbers_beyond_fp32_are_refused(options, message):
    q, k, v = (torch.zeros(1, n, 2, DIM) for n in (1, 9, 9))
    if "k_scale" in options or "v_scale" in options:
        k, v = (x.to(torch.float8_e4m3fn) for x in (k, v))
    with pytest.raises(ValueError, match=f"^flash_attn_with_kvcache: {message}"):
        xeflash.flash_attn_with_kvcache(q, k, v, **options)


# ---- not finite ---------------------------------------------------------------------------------


@forms_and_types
@pytest.mark.parametrize("place", few(["q", "k", "v"], "k"))
def test_what_is_not_finite_reaches_the_rows_that_see_it(form, kind, dtype, place):
    q, k, v = draw(form, dtype)
    want, want_lse = attend(form, kind, q, k, v)
    row = q.shape[2] // 2
    others = torch.ones(want_lse.shape, dtype=torch.bool)
    if place == "q":
        others[:, 1, row] = False
    else:
        others[:, HEADS // HEADS_K :] = False
    for bad, key in ((NAN, 0), (NAN, KEYS - 1), (INF, 130), (-INF, KEYS - 1)):
        spoiled = {"q": q.clone(), "k": k.clone(), "v": v.clone()}
        spoiled[place][0, 1, row if place == "q" else key, 7] = bad
        out, lse = check(f"{bad} at {key}", form, kind, **spoiled)
        if form != "unified maximum":  # computes rows together, and all of them again
            assert torch.equal(out[others], want[others]) and torch.equal(lse[others], want_lse[others])


@forms
@pytest.mark.parametrize("bad", [NAN, INF])
def test_sinks_that_are_not_finite(form, kind, bad):
    q, k, v = draw(form, "fp32")
    out, lse = attend(form, kind, q, k, v, Features(sinks=torch.tensor([bad, 0.0, -INF, 1.0])))
    assert out[:, 0].isnan().all() and lse[:, 0].isnan().all()
    features = Features(sinks=torch.tensor([-INF, 1.0]))
    check_attention(form, q[:, 2:], k[:, 1:], v[:, 1:], features, out[:, 2:], lse[:, 2:], gpu=kind == "gpu")
