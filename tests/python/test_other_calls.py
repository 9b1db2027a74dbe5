"""Keywords of another kind of call are refused below the public functions, by name and before anything runs."""

import numpy as np
import pytest
import xeflash
from xeflash import _core

KEYS = np.ones((1, 9, 2, 64), np.float32)
ROWS = np.ones(1, np.int32)
OF_CACHES = {
    "cache_seqlens": ROWS, "cache_length": 3, "cache_batch_idx": ROWS, "cache_leftpad": ROWS,
    "block_table": np.zeros((1, 1), np.int32), "beam_index": np.zeros((1, 9), np.int32), "k_scale": 2.0, "v_scale": 2.0,
    "rotary_cos": KEYS[0, :, 0], "rotary_sin": KEYS[0, :, 0], "tree_mask": np.ones((1, 1), np.int32), "rotary_positions": np.zeros((1, 1), np.int32),
    "rotary_interleaved": False,
}  # fmt: skip
OF_PACKED = {"cu_seqlens_q": ROWS, "cu_seqlens_k": ROWS, "max_seqlen_q": 9, "max_seqlen_k": 9, "seqused_k": ROWS}
DENSE = {"function": "a call", "layout": 0, "q": KEYS, "k": KEYS, "v": KEYS}


@pytest.mark.parametrize("name", OF_CACHES)
def test_keywords_of_caches_need_one(name):
    xeflash.attention  # noqa: B018  loads the kernels
    with pytest.raises(ValueError, match=f"^a call: {name} must come with a cache of keys, got one without"):
        _core.forward(**DENSE, **{name: OF_CACHES[name]})


@pytest.mark.parametrize("name", OF_PACKED)
def test_keywords_of_packed_sequences_need_them(name):
    with pytest.raises(ValueError, match=f"^a call: {name} must come with packed sequences, got one without"):
        _core.forward(**DENSE, **{name: OF_PACKED[name]})


def test_an_unknown_gradient_is_refused():
    out, lse = _core.forward(**DENSE, return_lse=True)
    with pytest.raises(ValueError, match="^a call: wanted must be names of arrays that have gradients, got 'softcap'"):
        _core.backward(**DENSE, out=out, lse=lse, dout=out, dlse=None, wanted=("softcap",))


def test_a_mask_needs_the_layout_that_has_one():
    with pytest.raises(
        ValueError, match=r"^a call: attn_mask must come with the layout \(batch, heads, sequence, dim\)"
    ):
        _core.forward(**DENSE, attn_mask=np.ones((9, 9), bool))


def test_probabilities_take_no_gradients():
    out, lse = _core.forward(**DENSE, return_lse=True)
    with pytest.raises(TypeError, match="has no argument 'dout'"):
        _core.probabilities(**DENSE, lse=lse, dout=out)


def test_only_16_bits_have_a_rest():
    out, lse = _core.forward(**DENSE, return_lse=True)
    with pytest.raises(TypeError, match="^a call: residual must be of 16 bits"):
        _core.forward(**DENSE, residual=np.empty_like(out))
    with pytest.raises(TypeError, match="^a call: residual must be of 16 bits"):
        _core.backward(**DENSE, out=out, lse=lse, residual=out, dout=out, wanted=("q",))
