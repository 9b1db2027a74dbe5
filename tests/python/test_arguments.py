"""The extension's arguments by name: one list, and values of the types that they need."""

import numpy as np
import pytest
import xeflash
from xeflash import _core
from xeflash.call import schema

Q = np.ones((2, 3, 4, 64), np.float32)
CACHE = np.ones((2, 32, 4, 64), np.float32)
STARTS = np.array([0, 2, 3], np.int32)


@pytest.mark.parametrize("at, value", [(0, "softcaps"), (1, "int"), (2, 1.0), (3, "cap")])
def test_an_extension_of_another_table_is_refused_at_import(at, value):
    xeflash.attention  # noqa: B018  loads the extension
    call, products, learned = _core.call_fields(), _core.fields(), _core.learned_names()
    schema.check(call, products, learned)
    other = tuple(f[:at] + (value,) + f[at + 1 :] if f[0] == "softcap" else f for f in call)
    wrong = [(other, products, learned), (call[:-1], products, learned), (call, products, learned[:-1])]
    in_the_schema = ("linear", "matmul_softmax", "linear_cross_entropy", "linear_top_k", "sample")
    wrong += [(call, products | {name: products[name][:-1]}, learned) for name in in_the_schema]
    for some in wrong:
        with pytest.raises(ImportError, match="build it anew"):
            schema.check(*some)


def test_an_unknown_name_is_refused():
    with pytest.raises(TypeError, match=r"forward\(\) has no argument 'softmax'"):
        _core.forward(function="f", layout=0, q=Q, k=Q, v=Q, softmax=1.0)


FUNCTIONS = {
    "attention": lambda **more: xeflash.attention(Q, Q, Q, **more),
    "flash_attn_func": lambda **more: xeflash.flash_attn_func(Q, Q, Q, **more),
    "flash_attn_with_kvcache": lambda **more: xeflash.flash_attn_with_kvcache(Q, CACHE, CACHE, **more),
    "flash_attn_varlen_func": lambda **more: xeflash.flash_attn_varlen_func(
        Q[0], Q[0], Q[0], STARTS, STARTS, **{"max_seqlen_q": 2, "max_seqlen_k": 2} | more
    ),
}
NOT_A_NUMBER, NOT_BOOLEAN, NOT_AN_INTEGER = "must be a number", "must be True or False", "must be an integer"


@pytest.mark.parametrize(
    "function, name, value, rule",
    [
        ("attention", "scale", "0.5", NOT_A_NUMBER),
        ("attention", "scale", True, NOT_A_NUMBER),
        ("attention", "scale", 1j, NOT_A_NUMBER),
        ("attention", "softcap", [1.0], NOT_A_NUMBER),
        ("attention", "dropout_p", "half", NOT_A_NUMBER),
        ("attention", "is_causal", "no", NOT_BOOLEAN),
        ("attention", "is_causal", None, NOT_BOOLEAN),
        ("attention", "is_causal", 2, NOT_BOOLEAN),
        ("attention", "bottom_right", 0.0, NOT_BOOLEAN),
        ("attention", "enable_gqa", "yes", NOT_BOOLEAN),
        ("attention", "return_lse", None, NOT_BOOLEAN),
        ("flash_attn_func", "softmax_scale", "0.5", NOT_A_NUMBER),
        ("flash_attn_func", "causal", "no", NOT_BOOLEAN),
        ("flash_attn_varlen_func", "max_seqlen_q", 11.0, NOT_AN_INTEGER),
        ("flash_attn_varlen_func", "max_seqlen_k", "11", NOT_AN_INTEGER),
        ("flash_attn_varlen_func", "max_seqlen_k", True, NOT_AN_INTEGER),
        ("flash_attn_with_kvcache", "num_splits", 2.0, NOT_AN_INTEGER),
        ("flash_attn_with_kvcache", "rotary_interleaved", None, NOT_BOOLEAN),
        ("flash_attn_with_kvcache", "unified_max", "1", NOT_A_NUMBER),
    ],
)
def test_a_value_of_another_type_is_named(function, name, value, rule):
    got = f", got {value!r} \\({type(value).__name__}\\)".replace("[", r"\[").replace("]", r"\]")
    with pytest.raises(TypeError, match=f"^{function}: {name} {rule}{got}(; use (int|bool)\\({name}\\))?$") as refused:
        FUNCTIONS[function](**{name: value})
    assert ("; use " in str(refused.value)) == (type(value) is float)


@pytest.mark.parametrize("name, value", [("max_seqlen_q", 2**63), ("max_seqlen_k", -(2**70))])
def test_an_integer_that_does_not_fit_is_named(name, value):
    with pytest.raises(ValueError, match=rf"{name} must be -2\^63 to 2\^63 - 1, got {value}"):
        FUNCTIONS["flash_attn_varlen_func"](**{name: value})


def test_numbers_of_numpy_are_numbers():
    plain = xeflash.attention(Q, Q * 2, Q, scale=0.5, is_causal=True)
    same = xeflash.attention(Q, Q * 2, Q, scale=np.float32(0.5), is_causal=np.bool_(True))
    np.testing.assert_array_equal(plain, same)


def test_packed_forms_name_their_own_arguments():
    qkv, starts = np.ones((7, 3, 2, 64), np.float32), np.array([0, 3, 7], np.int32)
    function = "flash_attn_varlen_qkvpacked_func: "
    with pytest.raises(ValueError, match=f"^{function}max_seqlen must be at least the longest sequence"):
        xeflash.flash_attn_varlen_qkvpacked_func(qkv, starts, 3)
    with pytest.raises(ValueError, match=f"^{function}cu_seqlens must end with"):
        xeflash.flash_attn_varlen_qkvpacked_func(qkv[:6], np.array([0, 3, 4], np.int32), 4)
    with pytest.raises(TypeError, match="^flash_attn_qkvpacked_func: qkv must be float32"):
        xeflash.flash_attn_qkvpacked_func(np.ones((1, 4, 3, 2, 64), np.float64))
    with pytest.raises(
        ValueError, match=r"^flash_attn_kvpacked_func: kv.head_dim must equal q.head_dim \(64\), got 32"
    ):
        xeflash.flash_attn_kvpacked_func(np.ones((1, 4, 2, 64), np.float32), np.ones((1, 4, 2, 2, 32), np.float32))
