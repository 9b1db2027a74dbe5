"""Refused arguments: the error's type and text, and that nothing has been done."""

import re

import numpy as np
import pytest
import torch
import xeflash


def bshd(batch=2, rows=63, keys=127, heads=4, heads_k=2, dim=64, dim_v=64, dtype=torch.bfloat16):
    shapes = [(batch, rows, heads, dim), (batch, keys, heads_k, dim), (batch, keys, heads_k, dim_v)]
    return dict(zip("qkv", (torch.randn(shape).to(dtype) for shape in shapes), strict=True))


def tensor(*shape, dtype=torch.bfloat16):
    return torch.zeros(shape, dtype=dtype)


def int32(*values):
    return torch.tensor(values, dtype=torch.int32)


DENSE = {
    "head-dims": (
        dict(q=tensor(2, 63, 8, 128), k=tensor(2, 1000, 8, 96)),
        ValueError,
        "k.head_dim must equal q.head_dim (128), got 96; k.shape = [2, 1000, 8, 96]",
    ),
    "heads": (
        dict(q=tensor(2, 63, 3, 64)),
        ValueError,
        "k.heads must divide q.heads (3), got 2; k.shape = [2, 127, 2, 64]",
    ),
    "v-heads": (
        dict(v=tensor(2, 127, 4, 64)),
        ValueError,
        "v.heads must equal k.heads (2), got 4; v.shape = [2, 127, 4, 64]",
    ),
    "batch": (
        dict(q=tensor(3, 63, 4, 64)),
        ValueError,
        "k.batch must equal q.batch (3), got 2; k.shape = [2, 127, 2, 64]",
    ),
    "v-batch": (
        dict(v=tensor(1, 127, 2, 64)),
        ValueError,
        "v.batch must equal q.batch (2), got 1; v.shape = [1, 127, 2, 64]",
    ),
    "v-length": (
        dict(v=tensor(2, 9, 2, 64)),
        ValueError,
        "v.length must equal k.length (127), got 9; v.shape = [2, 9, 2, 64]",
    ),
    "rank": (
        dict(q=tensor(63, 4, 64)),
        ValueError,
        "q must have 4 dimensions, got 3; q.shape = [63, 4, 64]",
    ),
    "dtype": (
        dict(q=tensor(2, 63, 4, 64).double()),
        TypeError,
        "q must be float32, float16 or bfloat16, got ",
    ),
    "int-dtype": (
        dict(q=tensor(2, 63, 4, 64).int()),
        TypeError,
        "q must be float32, float16 or bfloat16, got int32",
    ),
    "mixed": (
        dict(k=tensor(2, 127, 2, 64).half()),
        TypeError,
        "k must have the dtype of q (bfloat16), got float16",
    ),
    "no-array": (
        dict(q=[1.0]),
        TypeError,
        "q must be a torch tensor, a numpy array or have __sycl_usm_array_interface__, got list",
    ),
    "none": (dict(v=None), TypeError, "v must be a torch tensor"),
    "dim-577": (
        dict(q=tensor(1, 2, 1, 577), k=tensor(1, 2, 1, 577), v=tensor(1, 2, 1, 577)),
        ValueError,
        "q.head_dim must be 1 to 576, got 577; q.shape = [1, 2, 1, 577]",
    ),
    "dim-0": (
        dict(q=tensor(1, 2, 1, 0), k=tensor(1, 2, 1, 0)),
        ValueError,
        "q.head_dim must be 1 to 576, got 0",
    ),
    "softcap": (dict(softcap=-1.0), ValueError, "softcap must be 0 (off) or positive and finite in float32, got -1"),
    "softcap-dropout": (
        dict(softcap=1.0, dropout_p=0.1),
        (ValueError, NotImplementedError),
        "softcap",
    ),
    "dropout-above": (dict(dropout_p=1.5), ValueError, "dropout_p must be 0 to 1, got 1.5"),
    "dropout-below": (dict(dropout_p=-0.1), ValueError, "dropout_p must be 0 to 1, got -0.1"),
    "dropout-nan": (dict(dropout_p=float("nan")), ValueError, "dropout_p must be 0 to 1, got nan"),
    "dropout-array": (dict(dropout_p=np.zeros(2)), TypeError, "dropout_p must be a number, got ndarray"),
    "dropout-tensor": (dict(dropout_p=torch.zeros(2)), TypeError, "dropout_p must be a number, got Tensor"),
    "softcap-array": (dict(softcap=np.ones(2), dropout_p=0.5), TypeError, "softcap must be a number, got ndarray"),
    "captures-array": (
        dict(captures=torch.zeros(2)),
        TypeError,
        "captures must be a mapping of names to values, got Tensor",
    ),
    "snippet-array": (dict(score_mod=np.zeros(2)), TypeError, "score_mod must be a string"),
    "probs-array": (dict(return_attn_probs=np.zeros(2)), TypeError, "return_attn_probs must be True or False, got "),
    "probs-text": (dict(return_attn_probs="no"), TypeError, "return_attn_probs must be True or False, got 'no' (str)"),
    "deterministic": (dict(deterministic=object()), TypeError, "deterministic must be True or False, got "),
    "scale-nan": (dict(softmax_scale=float("nan")), ValueError, "must be finite in float32, got nan"),
    "scale-inf": (dict(softmax_scale=float("inf")), ValueError, "must be finite in float32, got inf"),
    "window": (
        dict(window_size=(-2, 0)),
        ValueError,
        "window_size must be -1 (unlimited) or not negative and below 2^63, got -2",
    ),
    "window-three": (dict(window_size=(1, 2, 3)), (ValueError, TypeError), "window_size"),
    "alibi-shape": (
        dict(alibi_slopes=torch.zeros(3)),
        ValueError,
        "alibi_slopes must have shape [4] or [2, 4], got [3]; alibi_slopes.shape = [3]",
    ),
    "alibi-dtype": (
        dict(alibi_slopes=tensor(4)),
        TypeError,
        "alibi_slopes must be float32, got bfloat16",
    ),
    "sink-shape": (
        dict(s_aux=torch.zeros(2)),
        ValueError,
        "s_aux must have shape [4], got [2]; s_aux.shape = [2]",
    ),
    "sink-dtype": (
        dict(s_aux=torch.zeros(4).int()),
        TypeError,
        "s_aux must be a floating type, got int32",
    ),
    "meta": (
        dict(q=tensor(2, 63, 4, 64).to("meta")),
        (TypeError, ValueError, NotImplementedError),
        "q must be a dense tensor on a cpu or xpu device",
    ),
    "sparse": (
        dict(q=torch.zeros(4, 4).to_sparse()),
        (TypeError, ValueError, BufferError, RuntimeError),
        "",
    ),
}


@pytest.mark.parametrize("name", DENSE)
def test_flash_attn_func_refuses(name):
    changes, error, text = DENSE[name]
    with pytest.raises(error, match=r"^flash_attn_func: .*" + re.escape(text) if text else None):
        xeflash.flash_attn_func(**(bshd() | changes))


def test_torch_and_numpy_in_host_memory_may_mix():
    """They are in the same place; the result is of q's kind."""
    arrays = bshd(dtype=torch.float32)
    want = xeflash.flash_attn_func(**arrays)
    for name in "kv":
        assert torch.equal(xeflash.flash_attn_func(**(arrays | {name: arrays[name].numpy()})), want)
    got = xeflash.flash_attn_func(**(arrays | {"q": arrays["q"].numpy()}))
    assert isinstance(got, np.ndarray) and np.array_equal(got, want.numpy())


CU = int32(0, 20, 50)
VARLEN = {
    "dtype": (dict(cu_seqlens_q=CU.long()), TypeError, "cu_seqlens_q must be int32, got "),
    "rank": (
        dict(cu_seqlens_q=CU[None]),
        ValueError,
        "cu_seqlens_q must have 1 dimension, got 2; cu_seqlens_q.shape = [1, 3]",
    ),
    "entries": (
        dict(cu_seqlens_k=int32(0, 50)),
        ValueError,
        "cu_seqlens_k must have 3 entries, got 2; cu_seqlens_k.shape = [2]",
    ),
    "none-left": (dict(cu_seqlens_q=int32()), ValueError, "cu_seqlens_q must have batch + 1 entries, got 0"),
    "decreasing": (dict(cu_seqlens_k=int32(0, 30, 20)), ValueError, "cu_seqlens_k must not decrease, got 20 after 30"),
    "first": (dict(cu_seqlens_q=int32(1, 20, 50)), ValueError, "cu_seqlens_q must start with 0, got 1"),
    "beyond": (
        dict(cu_seqlens_k=int32(0, 20, 51), max_seqlen_k=31),
        ValueError,
        "cu_seqlens_k must end with the number of packed rows (50), got 51",
    ),
    "before": (
        dict(cu_seqlens_q=int32(0, 20, 49)),
        ValueError,
        "cu_seqlens_q must end with the number of packed rows (50), got 49",
    ),
    "max-q": (dict(max_seqlen_q=29), ValueError, "max_seqlen_q must be at least the longest sequence (30), got 29"),
    "max-k": (dict(max_seqlen_k=-1), ValueError, "max_seqlen_k must be "),
    "strided": (
        dict(cu_seqlens_q=int32(0, 9, 20, 9, 50)[::2]),
        ValueError,
        "cu_seqlens_q must be contiguous, got strides [2]",
    ),
    "used-many": (
        dict(seqused_k=int32(20, 31)),
        ValueError,
        "seqused_k must be 0 to the sequence's length (30), got 31",
    ),
    "used-negative": (
        dict(seqused_k=int32(-1, 30)),
        ValueError,
        "seqused_k must be 0 to the sequence's length (20), got -1",
    ),
    "used-entries": (dict(seqused_k=int32(20)), ValueError, "seqused_k must have 2 entries, got 1"),
    "used-dtype": (dict(seqused_k=torch.tensor([20, 30])), TypeError, "seqused_k must be int32, got int64"),
    "paged-rank": (
        dict(block_table=tensor(2, 3, dtype=torch.int32)),
        ValueError,
        "block_table must be None unless k has pages (pages, rows, heads, head_dim), got one with k.shape = [50, 2, 64]",
    ),
    "paged-dropout": (
        dict(block_table=tensor(2, 3, dtype=torch.int32), dropout_p=0.5),
        NotImplementedError,
        "dropout_p must be 0 with block_table, got 0.5",
    ),
    "rank-of-q": (dict(q=tensor(2, 25, 4, 64)), ValueError, "q must have 3 dimensions, got 4"),
    "alibi": (
        dict(alibi_slopes=torch.zeros(3, 4)),
        ValueError,
        "alibi_slopes must have shape [4] or [2, 4], got [3, 4]",
    ),
}


@pytest.mark.parametrize("name", VARLEN)
def test_flash_attn_varlen_func_refuses(name):
    changes, error, text = VARLEN[name]
    arguments = dict(zip("qkv", (tensor(50, heads, 64) for heads in (4, 2, 2)), strict=True))
    arguments |= dict(cu_seqlens_q=CU, cu_seqlens_k=CU, max_seqlen_q=30, max_seqlen_k=30)
    with pytest.raises(error, match=r"^flash_attn_varlen_func: .*" + re.escape(text)):
        xeflash.flash_attn_varlen_func(**(arguments | changes))


@pytest.mark.parametrize(
    "name",
    ["flash_attn_qkvpacked_func", "flash_attn_varlen_qkvpacked_func", "flash_attn_kvpacked_func"],
)
def test_packed_functions_name_themselves_and_their_argument(name):
    varlen = "varlen" in name
    wrong = tensor(*((50,) if varlen else (2, 25)), 2 if "qkv" in name else 3, 4, 64)  # 2 of 3, or 3 of 2
    first = [tensor(2, 25, 4, 64)] if name == "flash_attn_kvpacked_func" else []
    more = [int32(0, 50), 50] if varlen else []
    argument = "kv" if first else "qkv"
    with pytest.raises(ValueError, match=rf"^{name}: {argument} .*{re.escape(str(list(wrong.shape)))}"):
        getattr(xeflash, name)(*first, wrong, *more)
