"""Users' changes to scores: what their C++ may say, what is refused. test_pairwise.py has one among everything else."""

import subprocess
import sys

import numpy as np
import pytest
import torch
import xeflash
from arrays import from_array, is_on_gpu, to_array
from cover import few
from reference import Features
from tolerance import check_attention

ROWS, KEYS, HEADS = 37, 61, 3


# C++, what it captures, the same in numpy.
BIAS_TABLE = torch.randn(200, generator=torch.Generator().manual_seed(1))
DOCUMENT = (torch.arange(KEYS) // 20).int()
HIDDEN = torch.arange(KEYS) % 5 == 0
SLOPE = torch.rand(2, HEADS, generator=torch.Generator().manual_seed(2)).bfloat16()
MOVES = torch.randn(HEADS, 4, 50, generator=torch.Generator().manual_seed(3)).half()
SNIPPETS = {
    "table": (
        "s + bias_table[q_idx - k_idx + 100]",
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


@pytest.mark.parametrize("rows", [ROWS, 1])
@pytest.mark.parametrize("kind", ["torch", "numpy"])
@pytest.mark.parametrize("name", SNIPPETS)
def test_matches_reference(name, kind, rows):
    check(name, torch.float32, rows, kind)


@pytest.mark.gpu
@pytest.mark.parametrize("name", few(SNIPPETS, *list(SNIPPETS)[::3]))
def test_matches_reference_on_gpu(gpu, name):
    check(name, torch.float16, ROWS, "gpu")


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
        check_attention("table", *(x.transpose(1, 2) for x in (q, k, v)), f, out.transpose(1, 2), None)


def test_numbers_are_parameters():
    q = np.ones((1, 1, 20, 64), np.float32)
    text = "s * factor + level[k_idx] * 0.125f"
    lse = []
    for factor, dtype in ((1.0, np.float32), (0.0, np.float32), (0.0, np.float16)):
        captures = {"factor": factor, "level": np.arange(20).astype(dtype)}
        lse.append(xeflash.attention(q, q, q, return_lse=True, score_mod=text, captures=captures)[1][0, 0, 0])
    assert lse[0] == pytest.approx(lse[1] + 8, abs=1e-4) and lse[1] == pytest.approx(lse[2], abs=1e-5)


@pytest.mark.parametrize(
    ("score_mod", "captures", "error", "message"),
    [
        (None, {"a": 1}, ValueError, r"attention: captures are for score_mod, got {'a': 1} without"),
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
            "a+b2+c+d+e",
            dict.fromkeys(("a", "b2", "c", "d", "e"), np.ones(1, np.float32)),
            ValueError,
            "at most 4 arrays",
        ),
        ("+".join(f"n{i}" for i in range(9)), {f"n{i}": i for i in range(9)}, ValueError, "at most 8 numbers"),
        ("s + nothing", {}, RuntimeError, "did not compile: .*undeclared identifier 'nothing'"),
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
        ("(" * 65 + "s" + ")" * 65, "at most 64 brackets in each other, got more at 64"),
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
for text in ("- " * 498 + "s", "(" * 64 + "s" + ")" * 64, "abs(" * 64 + "s" + ")" * 64, "s" + " + 1" * 249):
    assert np.abs(xeflash.attention(q, q, q, score_mod=text) - 1).max() < 1e-6
"""


def test_the_longest_and_the_deepest_compile():
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


def test_variables_and_large_numbers_with_values_compile():
    q = np.ones((1, 1, 2, 8), np.float32)
    text = "float y = max(1e-3f, 2e-3f), z = 3.4e38; return select(s * y > z, inf, s);"
    assert np.allclose(xeflash.attention(q, q, q, score_mod=text), 1)


def test_comments_are_not_code():
    q = np.ones((1, 1, 3, 64), np.float32)
    lse = [
        xeflash.attention(q, q, q, return_lse=True, score_mod=text)[1]
        for text in ("s + 1", "s /* of ; one (row */ + 1 // more; }")
    ]
    np.testing.assert_array_equal(*lse)


def test_large_arrays_are_refused():
    q = np.ones((1, 1, 3, 64), np.float32)
    far = np.lib.stride_tricks.as_strided(np.ones(1, np.float32), (2,), (2**31,))
    with pytest.raises(ValueError, match=r'captures\["far"\] must span less than 2 GiB'):
        xeflash.attention(q, q, q, score_mod="s + far[k_idx]", captures={"far": far})
