"""What values of different types are to snippets: in every kernel what they are in C++, or the snippet does not compile.

Kernels keep queries or keys in vectors, and what is left in numbers. A snippet is a head here, and each score is read
off: V is the identity, so O = exp(score - LSE).
"""

import math
import re

import numpy as np
import pytest
import torch
import xeflash
from arrays import from_array, to_array
from cover import few, few_rows

ROWS, KEYS, DIM, PAGE = 9, 24, 64, 16

KINDS = torch.arange(KEYS).int() * 5 % 7 - 3
KEEP = torch.arange(KEYS) % 3 == 1
HALF = (torch.arange(2 * KEYS).reshape(2, KEYS) % 5).half() / 4
BRAIN = (torch.arange(KEYS) % 4).bfloat16() - 1.5
CAPTURES = {"kinds": KINDS, "keep": KEEP, "half": HALF, "brain": BRAIN}
CAPTURES |= {"n": 3, "x": 0.5, "flag": True, "least": -(2**31)}
kinds, keep, brain = KINDS.tolist(), KEEP.tolist(), BRAIN.tolist()
n, x, flag, inf = 3, 0.5, 1, math.inf


def half(b, k):
    return HALF[b, k].item()


def quotient(a, b):
    """C++ rounds towards 0, Python down."""
    return int(a / b)


def remainder(a, b):
    return a - b * quotient(a, b)


# C++, and the same of one score in Python, whose bools are 0 and 1, too; None: the C++ is Python
EXPRESSIONS = {
    # ints and floats
    "s + k_idx": None,
    "s - (q_idx - k_idx)": None,
    "k_idx - s": None,
    "s * (k_idx % 3)": None,
    "s / (k_idx + 1)": None,
    "(q_idx + 1) / (s * s + 1)": None,
    "s + k_idx * 0.25": None,
    "s + 1.5e-1 * k_idx": None,
    "s + q_idx / 2": lambda s, b, h, q, k: s + q // 2,
    "s + k_idx / 5": lambda s, b, h, q, k: s + k // 5,
    "s + k_idx / 5.f": lambda s, b, h, q, k: s + k / 5,
    "s + number(k_idx) / 5": lambda s, b, h, q, k: s + k / 5,
    "s + (q_idx - k_idx) / 4": lambda s, b, h, q, k: s + quotient(q - k, 4),
    "s + (q_idx - k_idx) % 4": lambda s, b, h, q, k: s + remainder(q - k, 4),
    "s + 17 / (k_idx + 1)": lambda s, b, h, q, k: s + 17 // (k + 1),
    "s + 17 % (q_idx + 2)": lambda s, b, h, q, k: s + 17 % (q + 2),
    "s + (k_idx - 9) / (q_idx + 2)": lambda s, b, h, q, k: s + quotient(k - 9, q + 2),
    "s + 1 / 2 + b * 0.5": lambda s, b, h, q, k: s + b / 2,
    "s + (k_idx + b) * x": None,
    # bools
    "s * (k_idx <= q_idx)": None,
    "s + (k_idx == q_idx)": None,
    "s + (k_idx > 3) + (q_idx > 2)": None,
    "s + ((k_idx > 3) + (q_idx > 2)) * 2": None,
    "s - (s > 0)": None,
    "s + (s > 0) * 2.5": None,
    "s + (true + keep[k_idx])": lambda s, b, h, q, k: s + 1 + keep[k],
    "s + (k_idx > 4) / 2": lambda s, b, h, q, k: s,
    "s + (s < k_idx)": None,
    "s + (k_idx == 3.f)": lambda s, b, h, q, k: s + (k == 3),
    "s + (kinds[k_idx] != keep[k_idx])": None,
    "s + (0.5 >= s)": None,
    "s + !k_idx": lambda s, b, h, q, k: s + (not k),
    "s + !(q_idx > 2)": lambda s, b, h, q, k: s + (not q > 2),
    "s + ~(k_idx > 2)": lambda s, b, h, q, k: s - 1 - (k > 2),
    "s + -(k_idx > 4)": None,
    "s + +(q_idx > 4)": None,
    # bits
    "s + ~k_idx": None,
    "s + ((k_idx > 2) ^ (q_idx > 1))": None,
    "s + ((k_idx > 2) & 3)": None,
    "s + ((k_idx & 6) | 1)": None,
    "s + (k_idx ^ q_idx)": None,
    "s + (1 << (k_idx & 3))": None,
    "s + (k_idx >> 2)": None,
    "s + ((q_idx - k_idx) >> 1)": None,
    "s + ((k_idx > 1) << 2)": None,
    # truth
    "s + (k_idx && q_idx)": lambda s, b, h, q, k: s + bool(k and q),
    "s + (s > 0 || k_idx)": lambda s, b, h, q, k: s + bool(s > 0 or k),
    "s + (b && k_idx > 2)": lambda s, b, h, q, k: s + bool(b and k > 2),
    "s + (keep[k_idx] && kinds[q_idx])": lambda s, b, h, q, k: s + bool(keep[k] and kinds[q]),
    # choices
    "select(k_idx <= q_idx, s, -inf)": lambda s, b, h, q, k: s if k <= q else -inf,
    "select(k_idx < 12, s, 3)": lambda s, b, h, q, k: s if k < 12 else 3,
    "select(q_idx > 2, s, k_idx)": lambda s, b, h, q, k: s if q > 2 else k,
    "select(q_idx > 0 && k_idx < 1, -inf, s)": lambda s, b, h, q, k: -inf if q > 0 and k < 1 else s,
    "select(b, s + 1, s)": lambda s, b, h, q, k: s + 1 if b else s,
    "select(b, s, k_idx)": lambda s, b, h, q, k: s if b else k,
    "select(b, q_idx, 0)": lambda s, b, h, q, k: q if b else 0,
    "s + select(b > 0, n, 7) / 2": lambda s, b, h, q, k: s + (3 if b else 7) // 2,
    "select(flag, s, 0)": lambda s, b, h, q, k: s,
    "s + select(k_idx > q_idx, 2, 0.5)": lambda s, b, h, q, k: s + (2 if k > q else 0.5),
    "s + select(k_idx > 5, k_idx > 7, q_idx > 3)": lambda s, b, h, q, k: s + (k > 7 if k > 5 else q > 3),
    "s + select(k_idx, 1, 2)": lambda s, b, h, q, k: s + (1 if k else 2),
    "s + select(keep[k_idx], k_idx, 3) / 2": lambda s, b, h, q, k: s + (k if keep[k] else 3) // 2,
    "s + select(q_idx > 2, 1, k_idx) / 2": lambda s, b, h, q, k: s + (1 if q > 2 else k) // 2,
    # functions
    "max(s, 0)": None,
    "min(s, k_idx % 2)": None,
    "s + max(k_idx, q_idx)": None,
    "s + min(k_idx, 4.5)": None,
    "s + max(q_idx, 2) / 3": lambda s, b, h, q, k: s + max(q, 2) // 3,
    "s + max(b, 0.5)": None,
    "s + min(k_idx > 2, 3)": None,
    "s + abs(q_idx - k_idx)": None,
    "abs(s) + abs(k_idx - 9.5)": None,
    "s + abs(-b)": None,
    "s + exp(k_idx > 3)": lambda s, b, h, q, k: s + math.exp(k > 3),
    "s + log2(k_idx + 1)": lambda s, b, h, q, k: s + math.log2(k + 1),
    "s + sqrt(k_idx) + sqrt(2) * b": lambda s, b, h, q, k: s + math.sqrt(k) + math.sqrt(2) * b,
    "s + tanh(q_idx - 3) + tanh(b)": lambda s, b, h, q, k: s + math.tanh(q - 3) + math.tanh(b),
    "s + exp2(q_idx % 3) + log(3)": lambda s, b, h, q, k: s + 2 ** (q % 3) + math.log(3),
    "s + (log(k_idx) == -inf)": lambda s, b, h, q, k: s + (k == 0),
    "s + (log2(inf - b) == inf) + (log(-1) != log(-1))": lambda s, b, h, q, k: s + 2,
    "s + max(sqrt(-1 - k_idx), 2)": lambda s, b, h, q, k: s + 2,
    "s + min(1, sqrt(-1 - b))": lambda s, b, h, q, k: s + 1,
    "s + floor(s * 3)": lambda s, b, h, q, k: s + math.floor(s * 3),
    "s + floor(k_idx * -0.4) / 2": lambda s, b, h, q, k: s + math.floor(k * -0.4) / 2,
    "s + floor(q_idx) / 2 + floor(k_idx > 2) + floor(b - 0.5)": lambda s, b, h, q, k: (
        s + q / 2 + (k > 2) + math.floor(b - 0.5)
    ),
    "s + whole(s * 3)": lambda s, b, h, q, k: s + int(s * 3),
    "s + kinds[whole(q_idx * 0.7)] + whole(k_idx * -0.4) % 3": lambda s, b, h, q, k: (
        s + kinds[int(q * 0.7)] + remainder(int(k * -0.4), 3)
    ),
    "s + whole(k_idx) / 2 + whole(k_idx > 2) / 2 + whole(b + 0.5)": lambda s, b, h, q, k: s + k // 2 + b,
    "s + (whole(3e9 + k_idx) == ~least) + (whole(-inf * (k_idx + 1)) == least) + whole(inf - inf)": (
        lambda s, b, h, q, k: s + 2
    ),
    "s + sin(s * 9) + cos(k_idx * 9)": lambda s, b, h, q, k: s + math.sin(s * 9) + math.cos(k * 9),
    "s + sin(b) + cos(q_idx > 2) * sin(q_idx)": lambda s, b, h, q, k: s + math.sin(b) + math.cos(q > 2) * math.sin(q),
    # captures
    "s + kinds[k_idx]": None,
    "s + kinds[q_idx] * keep[k_idx]": None,
    "s + keep[k_idx] + keep[b]": None,
    "s + half(b, k_idx)": None,
    "s + brain[q_idx] * kinds[k_idx]": None,
    "s + brain[keep[k_idx]]": None,
    "s * x + n * keep[q_idx]": None,
    "s + kinds[k_idx] / 2 * n": lambda s, b, h, q, k: s + quotient(kinds[k], 2) * 3,
    "s * flag - flag": None,
    # what is returned
    "k_idx": None,
    "q_idx - k_idx": None,
    "k_idx > 3": None,
    "keep[k_idx]": None,
    "kinds[q_idx]": None,
    "b": None,
    "b > 0": None,
    "0.25": None,
    "-k_idx": None,
    "auto t = s; t += k_idx; t *= keep[k_idx]; t -= 0.5; t /= 2; return t;": lambda s, b, h, q, k: (
        ((s + k) * keep[k] - 0.5) / 2
    ),
    "int t = b; t += n; return s + t + k_idx % 2;": lambda s, b, h, q, k: s + b + 3 + k % 2,
    "auto t = k_idx; t += 3; t /= 2; return s + t;": lambda s, b, h, q, k: s + (k + 3) // 2,
    # what C++ leaves open does not stop the process
    "s + 0 * (7 / k_idx + 7 % q_idx + least / (q_idx - 1 - k_idx) + (least - 0 * q_idx) % (k_idx * 0 - 1))": (
        lambda s, b, h, q, k: s
    ),
}


def as_python(text):
    return eval(f"lambda s, b, h, q_idx, k_idx: {text}")


def snippet_of(texts):
    """One that is the i-th of them for head i."""
    chosen = "s"
    for i, text in reversed(list(enumerate(texts))):
        chosen = f"select(h == {i}, {f'[&] {{ {text} }}()' if ';' in text else text}, {chosen})"
    return f"return {chosen};"


def scores_of(texts, kind, kernel):
    """What they make of scores, and what they should."""
    rows = ROWS if kernel == "prefill" else 1
    heads, generator = len(texts), torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, length, heads, DIM, generator=generator) / 2 for length in (rows, KEYS))
    v = torch.eye(KEYS, DIM)[None, :, None].expand(2, KEYS, heads, DIM).contiguous()
    s = torch.einsum("bqhd,bkhd->bhqk", q.double(), k.double()).numpy() / math.sqrt(DIM)
    words = set(re.findall(r"\w+", " ".join(texts)))
    options = {
        "score_mod": snippet_of(texts),
        "captures": {name: to_array(value, kind) for name, value in CAPTURES.items() if name in words},
    }
    if kernel == "paged decode":
        places = torch.tensor([[3, 0], [1, 2]], dtype=torch.int32)
        pages = torch.zeros(2, 4, PAGE, heads, DIM)
        for array, cache in zip((k, v), pages, strict=True):
            padded = torch.nn.functional.pad(array, (0, 0, 0, 0, 0, 2 * PAGE - KEYS))
            cache[places.long().flatten()] = padded.reshape(4, PAGE, heads, DIM)
        lengths = torch.full((2,), KEYS, dtype=torch.int32)
        arrays = [to_array(a, kind) for a in (q, *pages)]
        more = {"block_table": to_array(places, kind), "cache_seqlens": to_array(lengths, kind)}
        out, lse = xeflash.flash_attn_with_kvcache(*arrays, **more, return_softmax_lse=True, **options)[:2]
    else:
        arrays = [to_array(a.transpose(1, 2), kind) for a in (q, k, v)]
        out, lse = xeflash.attention(*arrays, return_lse=True, **options)
    out, lse = from_array(out, kind), from_array(lse, kind).double()
    if kernel == "paged decode":
        out = out.transpose(1, 2)
    got = out[..., :KEYS].double().log() + lse[..., None]
    forms = [EXPRESSIONS[text] or as_python(text) for text in texts]
    want = [float(forms[place[1]](score.item(), *place)) for place, score in np.ndenumerate(s)]
    return got.numpy(), np.reshape(want, s.shape)


def check(texts, kind, kernel):
    got, want = scores_of(texts, kind, kernel)
    wrong = []
    for i, text in enumerate(texts):
        same = np.isclose(got[:, i], want[:, i], rtol=0, atol=1e-4)
        if not same.all():
            at = np.unravel_index(np.argmin(same), same.shape)
            wrong.append(f"{text}: got {got[:, i][at]}, want {want[:, i][at]} at {at}")
    assert not wrong, "\n".join(wrong)


KERNELS = ("prefill", "decode", "paged decode")
TEXTS = list(EXPRESSIONS)


def dealt(parts):
    """Snippets of about as many words: these are limited, and kernels of GPUs unroll them."""
    texts = sorted(TEXTS, key=lambda text: len(re.findall(r"\w+|\S", text)))
    return [texts[part :: 2 * parts] + texts[2 * parts - 1 - part :: 2 * parts] for part in range(parts)]


PARTS, PARTS_ON_GPU = dealt(5), dealt(10)


IN_EVERY_KERNEL = [(part, kernel) for part in range(len(PARTS)) for kernel in KERNELS]
IN_ONE = [(part, KERNELS[part % len(KERNELS)]) for part in (0, 2)]


@pytest.mark.parametrize(("part", "kernel"), few_rows(IN_EVERY_KERNEL, *IN_ONE))
def test_means_what_it_means_in_cpp(part, kernel):
    check(PARTS[part], "torch", kernel)


# Of each kind one, in one kernel.
FEW = TEXTS[1::8]


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", few(["prefill", "decode"], "prefill"))
def test_few_mean_it_on_gpu(gpu, kernel):
    check(FEW, "gpu", kernel)


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("part", range(len(PARTS_ON_GPU)))
def test_means_what_it_means_in_cpp_on_gpu(gpu, part, kernel):
    check(PARTS_ON_GPU[part], "gpu", kernel)


# C++, and what the first error says.
REFUSED = {
    # what C++ would make a bool of, where kernels have many
    "bool first = q_idx == 0; return s * first;": "no viable conversion",
    # or one number
    "float y = s; return y;": "no viable conversion",
    "int i = k_idx; return s + i;": "no viable conversion",
    "int i = q_idx; return s + i;": "no viable conversion",
    "s + float(q_idx)": "no matching conversion|cannot convert",
    # a value that belongs to rows, or keys, made one of scores
    "auto i = k_idx; i += q_idx; return s + i;": "no viable overloaded|no match",
    "auto i = q_idx; i += k_idx; return s + i;": "no viable overloaded|no match",
    "auto i = q_idx; i = s; return i;": "no viable overloaded",
    # an int made of a float
    "auto i = k_idx; i += 0.5; return s + i;": "no viable overloaded",
    "s % 2": "invalid operands",
    "s & 1": "invalid operands",
    "s << 1": "invalid operands",
    "~s": "invalid argument type",
    "s + kinds[s]": "no viable overloaded operator|no match",
    "s + kinds[floor(s)]": "no viable overloaded operator|no match",
    # 64 bits, unsigned
    "s + k_idx * 1L": "invalid operands",
    "s + k_idx * 1u": "invalid operands",
    "s * double(h)": "invalid operands",
    "s + sizeof(int)": "invalid operands",
    # dimensions
    "s + half[k_idx]": "no viable overloaded operator|no match",
    "s + half(k_idx)": "no matching function",
    # nothing to return
    "float y = 1;": "does not return a value",
    "s + nothing": "undeclared identifier 'nothing'",
}


@pytest.mark.parametrize(
    "text",
    [
        "k_idx > 3 ? s : -inf",
        "b ? s * 2 : s",
        "if (h == 0) { return s; } return -s;",
        "auto t = s; for (int i = 0; i < 3; ++i) t += i; return t;",
        "while (true) {} return s;",
        "switch (h) {} return s;",
    ],
)
def test_branches_are_refused(text):
    q = torch.ones(1, 1, 2, DIM)
    with pytest.raises(ValueError, match=r"^attention: score_mod must not branch; select\(condition, a, b\) chooses"):
        xeflash.attention(q, q, q, score_mod=text)


def refuse(text, kind, rows):
    q = torch.ones(1, 1, rows, DIM)
    words = set(re.findall(r"\w+", text))
    captures = {name: to_array(value, kind) for name, value in CAPTURES.items() if name in words}
    named = re.escape(f"xeflash: score_mod {' '.join(text.split())!r} did not compile: error: ")
    with pytest.raises(RuntimeError, match=f"{named}.*({REFUSED[text]})"):
        xeflash.attention(*(to_array(x, kind) for x in (q, q, q)), score_mod=text, captures=captures)


@pytest.mark.parametrize("rows", [2, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("text", REFUSED)
def test_does_not_compile(text, rows):
    refuse(text, "torch", rows)


@pytest.mark.gpu
@pytest.mark.long
@pytest.mark.parametrize("rows", [2, 1])
@pytest.mark.parametrize("text", REFUSED)
def test_does_not_compile_on_gpu(gpu, text, rows):
    refuse(text, "gpu", rows)
