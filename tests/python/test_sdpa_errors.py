"""What attention() refuses: the error's type and text, and that nothing has been written."""

import re

import numpy as np
import pytest
import torch
import xeflash


def tensor(*shape, dtype=torch.bfloat16):
    return torch.zeros(shape, dtype=dtype)


def bhsd(**changes):
    q, k, v = tensor(2, 4, 63, 64), tensor(2, 2, 127, 64), tensor(2, 2, 127, 64)
    return dict(query=q, key=k, value=v, enable_gqa=True) | changes


SDPA = {
    "gqa-not-enabled": (
        dict(enable_gqa=False),
        ValueError,
        "key.heads must equal query.heads (4) unless enable_gqa=True, got 2",
    ),
    "mask-shape": (
        dict(attn_mask=torch.zeros(63, 126)),
        ValueError,
        "attn_mask must broadcast to [2, 4, 63, 127], got [63, 126]",
    ),
    "mask-dtype": (
        dict(attn_mask=torch.zeros(63, 127).half()),
        TypeError,
        "attn_mask must be bool, float32 or the dtype of query, got float16",
    ),
    "mask-int": (
        dict(attn_mask=torch.zeros(63, 127).int()),
        TypeError,
        "attn_mask must be bool, float32 or the dtype of query, got int32",
    ),
    "sinks": (dict(sinks=torch.zeros(2)), ValueError, "sinks must have shape [4], got [2]"),
    "out-shape": (
        dict(out=tensor(2, 4, 63, 65)),
        ValueError,
        "out must have the shape of query with head_dim 64, got [2, 4, 63, 65]",
    ),
    "out-dtype": (dict(out=tensor(2, 4, 63, 64).half()), TypeError, "out must have the dtype of query, got float16"),
    "out-strided": (dict(out=tensor(2, 4, 63, 128)[..., ::2]), ValueError, "out must have a contiguous last dimension"),
    "rank-1": (
        dict(query=tensor(64), key=tensor(64), value=tensor(64)),
        ValueError,
        "query must have at least 2 dimensions, got 1",
    ),
    "rank-of-key": (
        dict(key=tensor(2, 127, 64)),
        ValueError,
        "key must have the 4 dimensions of query, got 3; key.shape = [2, 127, 64]",
    ),
    "key-dim": (
        dict(key=tensor(2, 2, 127, 32)),
        ValueError,
        "key.head_dim must equal query.head_dim (64), got 32; key.shape = [2, 2, 127, 32]",
    ),
    "rng-without-dropout": (
        dict(rng="ab"),
        (ValueError, TypeError),
        "rng must be two integers (seed, offset), got 'ab'",
    ),
    "dropout-array": (dict(dropout_p=torch.zeros(2)), TypeError, "dropout_p must be a number, got Tensor"),
    "rng": (dict(dropout_p=0.1, rng=(1, 2, 3)), (ValueError, TypeError), "rng"),
}


@pytest.mark.parametrize("name", SDPA)
def test_attention_refuses(name):
    changes, error, text = SDPA[name]
    out = changes.get("out", tensor(2, 4, 63, 64).fill_(7))
    before = out.clone()
    with pytest.raises(error, match=r"^attention: .*" + re.escape(text)):
        xeflash.attention(**bhsd(**({"out": out} | changes)))
    assert torch.equal(out, before)


def test_read_only_out_is_refused():
    q, k, v = (np.ones((2, heads, rows, 64), np.float32) for heads, rows in ((4, 63), (2, 127), (2, 127)))
    out = np.zeros((2, 4, 63, 64), np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match=r"^attention: out must be writable"):
        xeflash.attention(q, k, v, enable_gqa=True, out=out)
    assert not out.any()
