"""Users' changes to scores: what their C++ may say, what is refused. test_pairwise.py has one among everything else."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import numpy as np
import pytest
import torch
import xeflash
from arrays import from_array, is_on_gpu, to_array
from cover import few, few_rows
from plain import check_rows_first
from tolerance import check_attention, torch_formula
from xeflash.selftest.reference import Features

ROWS, KEYS, HEADS = 37, 61, 3


# C++, what it captures, the same in numpy.
BIAS_TABLE = torch.randn(200, generator=torch.Generator().manual_seed(1))
DOCUMENT = (torch.arange(KEYS) // 20).int()
HIDDEN = torch.arange(KEYS) % 5 == 0
SLOPE = torch.rand(2, HEADS, generator=torch.Generator().manual_seed(2)).bfloat16()
MOVES = torch.randn(HEADS, 4, 50, generator=torch.Generator().manual_seed(3)).half()
SNIPPETS = {
    "table": (  # comments are not code, and large numbers are
        "float y = max(1e-3f, 2e-3f), z = 3.4e38; /* of ; one (row */ "
        "return select(s * y > z, inf, s + bias_table[q_idx - k_idx + 100]); // more; }",
        {"bias_table": BIAS_TABLE},
        lambda s, b, h, i, j: s + BIAS_TABLE.numpy()[i - j + 100],
    ),
    "documents": (
        "select(document[q_idx] == document[k_idx], s, -inf)",
        {"document": DOCUMENT},
        lambda s, b, h, i, j: np.where(DOCUMENT.numpy()[i] == DOCUMENT.numpy()[j], s, -np.inf),
    ),
    "mask": (
        "select((hidden[k_idx] != 0) & (k_idx > from), -inf, s)",
        {"hidden": HIDDEN, "from": 3},
        lambda s, b, h, i, j: np.where(HIDDEN.numpy()[j] & (j > 3), -np.inf, s),
    ),
    "slopes": (
        "s - slope(b, h) * number(abs(q_idx - k_idx)) * 0.25f",
        {"slope": SLOPE},
        lambda s, b, h, i, j: s - SLOPE.float().numpy()[b, h] * abs(i - j) * 0.25,
    ),
    "statements": (
        "float half = number(h) / 2;\nauto capped = cap * tanh(s / cap) + half;\nreturn select(h == one, s, capped);",
        {"cap": np.float32(1.5), "one": np.int64(1)},
        lambda s, b, h, i, j: np.where(h == 1, s, 1.5 * np.tanh(s / 1.5) + h / 2),
    ),
    "functions": (
        "min(max(exp(s), 0.5f), 3.f) + log(abs(s) + 1.f) + sqrt(exp2(s)) - log2(number(max(k_idx, 1)))",
        {},
        lambda s, b, h, i, j: (
            np.clip(np.exp(s), 0.5, 3) + np.log(abs(s) + 1) + np.sqrt(2**s) - np.log2(np.maximum(j, 1))
        ),
    ),
    "past-the-end": (  # the element at the end
        "s + moves(h, q_idx, k_idx - 5)",
        {"moves": MOVES},
        lambda s, b, h, i, j: s + MOVES.float().numpy()[h, np.minimum(i, 3), np.clip(j - 5, 0, 49)],
    ),
    "strides": (
        "s + moves(k_idx % 50, q_idx % 4, h)",
        {"moves": MOVES.permute(2, 1, 0)},
        lambda s, b, h, i, j: s + MOVES.float().numpy()[h, i % 4, j % 50],
    ),
}


def check(name, dtype, rows, kind, **options):
    text, captures, numpy_form = SNIPPETS[name]
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, HEADS, length, 64).to(dtype) for length in (rows, KEYS, KEYS))
    out, lse = xeflash.attention(
        *(to_array(x, kind) for x in (q, k, v)),
        score_mod=text,
        captures={name: to_array(x, kind) for name, x in captures.items()},
        return_lse=True,
        **options,
    )
    f = Features(score_mod=numpy_form, softcap=options.get("softcap", 0.0), empty_lse=-np.inf, top_left=True)
    if options.get("is_causal"):
        f = f.with_(window=(-1, 0))
    check_attention(name, q, k, v, f, from_array(out, kind), from_array(lse, kind), is_on_gpu(kind))


@pytest.mark.parametrize(
    ("name", "rows"),
    few_rows(product(SNIPPETS, (ROWS, 1)), ("table", ROWS)),
)
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_matches_reference(name, kind, rows):
    check(name, torch.float32, rows, kind)


@pytest.mark.gpu
@pytest.mark.parametrize("name", few(SNIPPETS, "strides"))
def test_matches_reference_on_gpu(gpu, name):
    check(name, torch.float16, ROWS, "gpu")


@pytest.mark.wide
def test_joins_other_features():
    check("table", torch.bfloat16, ROWS, "torch", softcap=2.0, is_causal=True)


def test_arrays_of_flash_attn_and_packed_sequences():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, length, HEADS, 64) for length in (ROWS, KEYS, KEYS))
    text, captures, numpy_form = SNIPPETS["table"]
    f = Features(score_mod=numpy_form)
    for out in (
        xeflash.flash_attn_func(q, k, v, score_mod=text, captures=captures),
        xeflash.flash_attn_varlen_func(
            q[0], k[0], v[0], torch.tensor([0, ROWS]).int(), torch.tensor([0, KEYS]).int(), ROWS, KEYS,
            score_mod=text, captures=captures,
        )[None],
    ):  # fmt: skip
        check_rows_first("table", (q, k, v), out, f=f)


def test_numbers_are_parameters_and_so_are_arrays_without_dimensions():
    q = np.ones((1, 1, 20, 64), np.float32)
    lse = []
    for a in (1.0, 0.0, np.array(0.0, np.float32)):
        captures = {"near": np.arange(20, dtype=np.float32) / 8, "a": a, "n": 1}
        more = {"score_mod": "s * a + near[k_idx / n]", "captures": captures}
        lse.append(xeflash.attention(q, q, q, return_lse=True, **more)[1][0, 0, 0])
    assert lse[0] == pytest.approx(lse[1] + 8, abs=1e-4) and lse[1] == lse[2]


@pytest.mark.parametrize(
    ("score_mod", "captures", "error", "message"),
    [
        (None, {"a": 1}, ValueError, r"attention: captures are for score_mod and mask_mod, got {'a': 1} without"),
        (lambda s: s, {}, TypeError, "attention: score_mod must be a string.*got function"),
        ("  ", {}, ValueError, "attention: score_mod must not be empty"),
        ("s + a", {"a": "text"}, TypeError, r'attention: captures\["a"\].*str'),
        ("s + a", {"a": 2**40}, ValueError, r'captures\["a"\] must be below 2\^31, got 1099511627776'),
        ("s + a[b]", {"a": np.ones((2, 2), np.float64)}, TypeError, r'captures\["a"\] must be float32.*got float64'),
        ("s + a[b]", {"a": np.ones((0,), np.float32)}, ValueError, r'captures\["a"\] must not be empty'),
        ("s + a[b]", {"a": np.ones((9,), np.float32)[::-1]}, ValueError, r'captures\["a"\] must not have negative'),
        ("s + a[b]", {"a": np.ones((1,) * 5, np.float32)}, ValueError, "must have at most 4 dimensions, got 5"),
        ("s + a", {"a b": 1}, ValueError, "captures must have names of C.*got 'a b'"),
        (
            "s + short",
            {"short": 1},
            ValueError,
            r"captures must not have names that are keywords of C\+\+, got 'short'",
        ),
        ("s + s", {"s": 1}, ValueError, "captures must have names of C.*got 's'"),
        ("s", {"a": 1}, ValueError, r"captures\['a'\] must occur in score_mod, got 's'"),
        (
            "+".join(f"x{i}" for i in range(9)),
            {f"x{i}": np.ones(1, np.float32) for i in range(9)},
            ValueError,
            "at most 8 arrays",
        ),
        ("+".join(f"n{i}" for i in range(9)), {f"n{i}": i for i in range(9)}, ValueError, "at most 8 numbers"),
        (
            "s + nothing * a",
            {"a": 1.0},
            RuntimeError,
            "did not compile: .*identifier 'nothing'.* It may use s, b, h, q_idx, k_idx, inf, a, select, number,",
        ),
    ],
)
def test_refuses(score_mod, captures, error, message):
    q = np.ones((1, 1, 3, 64), np.float32)
    with pytest.raises(error, match=message):
        xeflash.attention(q, q, q, score_mod=score_mod, captures=captures)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s\n#include <cstdlib>\n", r"names, numbers, operators and brackets of C\+\+, got '#' at 2 in"),
        ("s %:include", "got '%:' at 2"),
        ("s \\\n + 1", r"got '\\\\' at 2"),
        ("s // a comment \\\n + 1", r"got '\\\\' at 15"),
        ("s + 1\0", r"got '\\x00' at 5"),
        ("s + größe", "got 'ö' at 6"),
        ("s /* größe */", r"got '/\*' at 2"),
        ("s + 1 /* and so on", r"got '/\*' at 6"),
        ('s + "text"[0]', "got '\"' at 4"),
        ("s ??' s", r"got '\?\?' at 2"),
        ("<%return s;%>", "got '<%' at 0"),
        ("return s; } int more() { return 1;", "must close the brackets that it opens, got '}' at 10"),
        ("s) + (s", r"got '\)' at 1"),
        ("s + a[(b]", "got ']' at 8"),
        ("(s + 1", r"must close its brackets, got an open '\('"),
        ("s // (\n)", r"got '\)' at 7"),
        ("(" * 65 + "s" + ")" * 65, "at most 64 nested brackets, got more at 64"),
        ("s" + " + 1" * 250, r"at most 500 names, numbers, operators and brackets, got 501 in 's \+ 1.*\.\.\.$"),
        ("s" + " " * 65536, "at most 65536 characters, got 65537"),
        ("/* nothing */ // at all", "must not be empty"),
    ],
)
def test_refuses_what_is_no_expression(text, message):
    """None of these may reach the compiler, which would end the process or take them for something else."""
    q = np.ones((1, 1, 3, 64), np.float32)
    with pytest.raises(ValueError, match="attention: score_mod .*" + message):
        xeflash.attention(q, q, q, score_mod=text)


DEEP = """
import numpy as np, xeflash
q = np.ones((1, 1, 3, 8), np.float32)
text = "abs(" * 32 + "(" * 32 + "- " * 338 + "s" + ")" * 64
assert np.abs(xeflash.attention(q, q, q, score_mod=text) - 1).max() < 1e-6
"""


@pytest.mark.wide
def test_the_longest_and_the_deepest_compiles():
    """In a process of its own, which the compiler ends if it descends too far."""
    done = subprocess.run([sys.executable, "-c", DEEP], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("float y; return s + y;", "must give each variable a value"),
        ("int n, m; return s + n;", "must give each variable a value"),
        ("return s; float y /* none */;", "must give each variable a value"),
        ("float x = max(1.0f, 2.0f), y; return s + y;", "must give each variable a value"),
        ("s + 1.0e400", "must have numbers that are finite in float32, got '1.0e400'"),
        ("s * 3.5e38f", "must have numbers that are finite in float32"),
    ],
)
def test_what_has_no_value_is_refused(text, message):
    q = np.ones((1, 1, 2, 8), np.float32)
    with pytest.raises(ValueError, match=f"^attention: score_mod {message}"):
        xeflash.attention(q, q, q, score_mod=text)


def test_large_arrays_are_refused():
    q = np.ones((1, 1, 3, 64), np.float32)
    far = np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (2,), (2**31,))
    with pytest.raises(ValueError, match=r'captures\["far"\] must span less than 2 GiB'):
        xeflash.attention(q, q, q, score_mod="s + far[k_idx]", captures={"far": far})


# ---- gradients of captures ----------------------------------------------------------------------


@dataclass(frozen=True)
class Learned:
    """C++, what it captures, the same in torch."""

    text: str
    captures: dict[str, torch.Tensor]
    form: Callable


def drawn(*shape: int, seed: int = 5) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


LEARNED = {
    "distance": Learned(  # as in T5, which has a bias of a head and a bucket
        "s + table(h, q_idx - k_idx + 70)",
        {"table": drawn(4, 180)},
        lambda s, b, h, i, j, table: s + table[h, i - j + 70],
    ),
    "past-the-end": Learned(
        "s + table(h, min(q_idx - k_idx, 9) + 5)",
        {"table": drawn(4, 12)},
        lambda s, b, h, i, j, table: s + table[h, (i - j + 5).clamp(0, 11)],
    ),
    "head": Learned("s * slope[h]", {"slope": drawn(4)}, lambda s, b, h, i, j, slope: s * slope[h]),
    "row-and-key": Learned(
        "select(q_idx % 5 == k_idx % 3, -inf, s + table(q_idx, k_idx))",
        {"table": drawn(99, 99)},
        lambda s, b, h, i, j, table: (s + table[i, j]).masked_fill(i % 5 == j % 3, -torch.inf),
    ),
    "product": Learned(
        "s + of_q(b, q_idx) * of_k[k_idx]",
        {"of_q": drawn(2, 99, seed=6), "of_k": drawn(99)},
        lambda s, b, h, i, j, of_q, of_k: s + of_q[b, i] * of_k[j],
    ),
    "twice": Learned(
        "s + near[q_idx % 7] * near[k_idx % 7]",
        {"near": drawn(7)},
        lambda s, b, h, i, j, near: s + near[i % 7] * near[j % 7],
    ),
    "number": Learned(
        "s * factor + tanh(factor * s)",
        {"factor": torch.tensor(0.7)},
        lambda s, b, h, i, j, factor: s * factor + torch.tanh(factor * s),
    ),
    "statements": Learned(
        "constexpr float half = 0.5; float x = slope[h] * half; // short\n"
        "int n = exp(slope[0] * 0) * 2; bool odd = slope[1] > x;\n"
        "s += (x * x + b) * s; return s * (n + odd) / sqrt(1 + abs(slope[h]));",
        {"slope": drawn(4)},
        lambda s, b, h, i, j, slope: (
            (s + (slope[h] ** 2 / 4 + b) * s) * (2 + (slope[1] > slope[h] / 2)) / (1 + slope[h].abs()).sqrt()
        ),
    ),
    "16-bit": Learned(
        "s * brain[h] + half(1, k_idx)",
        {"brain": drawn(4).bfloat16(), "half": drawn(2, 99).half()},
        lambda s, b, h, i, j, brain, half: s * brain[h] + half[1, j],
    ),
    "eight": Learned(
        "auto x = s * (slope[h] + k_idx % 3) + of_q[q_idx] * of_k[k_idx];\n"
        "x += table(h, q_idx - k_idx + 70) + both(b, k_idx) * sin(freq * (q_idx - k_idx) / 9);\n"
        "return x * factor + period[k_idx % 7];",
        {"slope": drawn(4), "of_q": drawn(99, seed=6), "of_k": drawn(99, seed=7), "table": drawn(4, 180)}
        | {"both": drawn(2, 99), "freq": torch.tensor(0.8), "factor": torch.tensor(0.6), "period": drawn(7)},
        lambda s, b, h, i, j, slope, of_q, of_k, table, both, freq, factor, period: (
            factor * (s * (slope[h] + j % 3) + of_q[i] * of_k[j] + table[h, i - j + 70])
            + factor * (both[b, j] * torch.sin(freq * (i - j) / 9))
            + period[j % 7]
        ),
    ),
    "few-workers": Learned(  # as many as their copies of the gradient have room for
        "s + table(h, k_idx * 1000)",
        {"table": drawn(4, 1 << 20)},
        lambda s, b, h, i, j, table: s + table[h, j * 1000],
    ),
}
FEATURES = {
    "plain": {},
    "causal": {"is_causal": True, "bottom_right": True},
    "window": {"window_size": (9, 4), "bottom_right": True},
    "softcap": {"softcap": 2.0},
    "bias": {"attn_mask": drawn(99, 61)},
    "dropout": {"dropout_p": 0.25, "rng": (3, 4)},
}
FEATURES["all"] = FEATURES["window"] | FEATURES["softcap"] | FEATURES["bias"] | FEATURES["dropout"]


def gradients_by_autograd(case, sequences, douts, **options):
    """In float64; (1, H, S, D) each."""
    leaves = {name: x.detach().cpu().double().requires_grad_() for name, x in case.captures.items()}
    window = options.get("window_size", (-1, 0 if options.get("is_causal") else -1))
    f = Features(window=window, softcap=options.get("softcap", 0.0), mask=options.get("attn_mask"))
    f = f.with_(dropout=options.get("dropout_p", 0.0), rng=options.get("rng"))

    def change(s, b, h, i, j):
        return case.form(s[0], b.item(), h[0], i[0], j[0], **leaves)[None]

    outs = [torch_formula(*(x.double() for x in sequence), f.with_(score_mod=change, batch0=b))[0]
            for b, sequence in enumerate(sequences)]  # fmt: skip
    return torch.autograd.grad(outs, list(leaves.values()), [x.double() for x in douts])


def check_gradients(found, want, case, tolerance):
    for x, y, (name, capture) in zip(found, want, case.captures.items(), strict=True):
        assert x.shape == capture.shape and x.dtype == capture.dtype
        most = max(tolerance, torch.finfo(capture.dtype).eps)
        error, largest = ((x.cpu().double() - y).abs().max().item(), y.abs().max().item())
        assert error <= most * largest, name


def check_dense(case, options, dtype, where, sizes=(99, 61), everything=False):
    generator = torch.Generator().manual_seed(1)
    (rows, keys), dim = sizes, 64
    draw = lambda heads, n: torch.randn(2, heads, n, dim, generator=generator).to(dtype)  # noqa: E731
    q, k, v, dout = draw(4, rows), draw(2, keys), draw(2, keys), draw(4, rows)
    moved = {name: x.to(where).detach().requires_grad_() for name, x in case.captures.items()}
    options = {name: x[:rows] if name == "attn_mask" else x for name, x in options.items()}
    there = {name: x.to(where) if name == "attn_mask" else x for name, x in options.items()}
    more = dict(enable_gqa=True, score_mod=case.text, captures=moved, **there)
    inputs = [x.to(where).requires_grad_(everything) for x in (q, k, v)]
    leaves = [*moved.values(), *inputs[: 3 * everything]]
    out = xeflash.attention(*inputs, **more)
    found = torch.autograd.grad(out, leaves, dout.to(where), retain_graph=True)
    again = torch.autograd.grad(out, list(moved.values()), dout.to(where))
    assert all(x.equal(y) for x, y in zip(found, again, strict=False))
    sequences = [[x[b : b + 1] for x in (q, k, v)] for b in range(2)]
    with torch.device("cpu"):
        want = gradients_by_autograd(case, sequences, dout.split(1), **options)
    check_gradients(found[: len(moved)], want, case, 2e-5 if dtype is torch.float32 else 2e-2)


@pytest.mark.parametrize("name", few(LEARNED, "product"))
def test_gradients_of_captures(name):
    check_dense(LEARNED[name], {}, torch.float32, "cpu")


@pytest.mark.wide
@pytest.mark.parametrize("features", FEATURES)
def test_gradients_of_captures_beside_other_features(features):
    name = "statements" if features == "all" else "product"
    check_dense(LEARNED[name], FEATURES[features], torch.float32, "cpu", everything=features == "all")
    if features != "all":
        check_dense(LEARNED["number"], FEATURES[features], torch.bfloat16, "cpu")


@pytest.mark.gpu
@pytest.mark.xpu
@pytest.mark.wide
@pytest.mark.parametrize(
    ("name", "features", "dtype"),
    [(name, "plain", torch.float16) for name in LEARNED if name != "few-workers"]
    + [("product", features, torch.float32) for features in FEATURES if features != "all"],
)
def test_gradients_of_captures_on_gpu(xpu, name, features, dtype):
    check_dense(LEARNED[name], FEATURES[features], dtype, "xpu", (41, 61))


@pytest.mark.parametrize("name", few(["distance", "product", "number"], "product"))
def test_gradients_of_captures_of_other_layouts(name):
    case, sizes = LEARNED[name], ((17, 40), (64, 9))  # queries and keys of two sequences
    sequences = [[drawn(1, heads, n, 64, seed=n) for heads, n in ((4, n), (2, m), (2, m))] for n, m in sizes]
    douts = [drawn(1, 4, n, 64, seed=n + 1) for n, _ in sizes]
    moved = {name: x.clone().requires_grad_() for name, x in case.captures.items()}
    more = {"causal": True, "score_mod": case.text, "captures": moved}
    q, k, v = (torch.cat([sequence[x][0].transpose(0, 1) for sequence in sequences]) for x in range(3))
    starts = [torch.tensor([0, *lengths]).cumsum(0).int() for lengths in zip(*sizes, strict=True)]
    out = xeflash.flash_attn_varlen_func(q, k, v, *starts, 64, 40, **more)
    dout = torch.cat([x[0].transpose(0, 1) for x in douts])
    found = torch.autograd.grad(out, list(moved.values()), dout)
    check_gradients(found, gradients_by_autograd(case, sequences, douts, is_causal=True), case, 2e-5)
    q, k, v = (x.transpose(1, 2) for x in sequences[0])
    out = xeflash.flash_attn_func(q, k, v, **more)
    found = torch.autograd.grad(out, list(moved.values()), douts[0].transpose(1, 2))
    check_gradients(found, gradients_by_autograd(case, sequences[:1], douts[:1], is_causal=True), case, 2e-5)


PRODUCT = LEARNED["product"].text


def test_gradients_of_captures_through_the_lse():
    q, captures = drawn(1, 2, 20, 64), {"of_q": drawn(1, 20).requires_grad_(), "of_k": drawn(20).requires_grad_()}
    _, lse = xeflash.attention(q, q, q, score_mod=PRODUCT, captures=captures, return_lse=True)
    of_q, of_k = (x.double() for x in captures.values())
    want = torch.logsumexp((q @ q.mT / 8).double() + of_q[:, None, :, None] * of_k, -1)
    found, wanted = (torch.autograd.grad(x.sum(), [*captures.values()]) for x in (lse, want))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_gradients_of_views():
    """Each has the shape of the view; autograd makes that of the tensor."""
    q, of_k, dout = drawn(2, 2, 9, 64), drawn(9).requires_grad_(), drawn(2, 2, 9, 64, seed=6)

    def gradient(view, *shape):
        tensor = drawn(*shape).requires_grad_()
        out = xeflash.attention(q, q, q, score_mod=PRODUCT, captures={"of_q": view(tensor), "of_k": of_k})
        moved = q.double() @ q.double().mT / 8 + view(tensor).double()[:, None, :, None] * of_k.double()
        want = torch.softmax(moved, -1) @ q.double()
        found, want = (torch.autograd.grad(x, tensor, dout.to(x.dtype))[0] for x in (out, want))
        torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)

    gradient(lambda x: x.expand(2, 9), 1)
    gradient(lambda x: x.expand(2, 9), 2, 1)
    gradient(lambda x: x[:, 3:12], 2, 20)
    gradient(lambda x: x[1::2, ::2].T, 18, 4)


@pytest.mark.wide
def test_a_read_without_slope_at_zero_leaves_the_other_alone():
    """sqrt has an infinite derivative at 0, which belongs to that element only."""
    q, c = drawn(1, 1, 9, 16), torch.tensor([4.0, 0.0], requires_grad=True)
    out = xeflash.attention(q, q, q, score_mod="s * sqrt(c[0]) + sqrt(c[k_idx % 2]) + 1 / c[0]", captures={"c": c})
    assert torch.autograd.grad(out, c, drawn(1, 1, 9, 16))[0][0].isfinite()


@pytest.mark.parametrize("sizes", [(0, 5), (5, 0)])
def test_gradients_without_scores_are_zero(sizes):
    captures = {"of_q": torch.ones(1, 5, requires_grad=True), "of_k": torch.ones(5)}
    q, k = (torch.ones(1, 1, n, 64) for n in sizes)
    out = xeflash.attention(q, k, k, score_mod=PRODUCT, captures=captures)
    assert torch.autograd.grad(out.sum(), captures["of_q"])[0].equal(torch.zeros(1, 5))


@pytest.mark.parametrize(
    ("text", "c", "message"),
    [
        ("f16 x = c[0]; return s * x;", torch.ones(3), "score_mod must have no other types than float, int.*got 'f16'"),
        (
            "s + c[0]",
            torch.ones(1).expand(2**29 + 1),
            "captures that require grad must have at most 536870912 elements",
        ),
    ],
)
def test_gradients_of_captures_are_refused_by_name(text, c, message):
    q = torch.ones(1, 1, 3, 64)
    with pytest.raises(NotImplementedError, match=f"^attention: {message}"):
        xeflash.attention(q, q, q, score_mod=text, captures={"c": c.requires_grad_()})


def test_captures_of_caches_have_no_gradients():
    q, cache, c = torch.ones(1, 1, 2, 64), torch.ones(1, 9, 2, 64), torch.ones(9, requires_grad=True)
    with pytest.raises(NotImplementedError, match=r"^flash_attn_with_kvcache: captures\['c'\] must not require grad"):
        xeflash.flash_attn_with_kvcache(q, cache, cache, score_mod="s + c[k_idx]", captures={"c": c})
