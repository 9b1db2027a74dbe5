"""seqused_q: packed sequences of which only the first queries are used, beside calls of those alone."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
import xeflash
from arrays import to_xpu

ROWS, USED, KEYS = [5, 0, 23, 1, 127], [5, 0, 9, 0, 100], [70, 3, 23, 8, 150]
ALIBI = torch.rand(5, 4, generator=torch.Generator().manual_seed(2)) / 4


def starts(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)


def used_rows() -> torch.Tensor:
    return torch.cat([torch.arange(n) + start for n, start in zip(USED, starts(ROWS).tolist(), strict=False)])


def arrays(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    shapes = (sum(ROWS), 4, 64), (sum(KEYS), 2, 64), (sum(KEYS), 2, 64)
    return [torch.randn(shape, generator=random).to(dtype) for shape in shapes]


def call(q: Any, k: Any, v: Any, put: Any = lambda x: x, **given: Any) -> Any:
    """With all queries, and how many are used."""
    packing = [put(x) for x in (starts(ROWS), starts(KEYS))]
    used = put(torch.tensor(USED, dtype=torch.int32))
    return xeflash.flash_attn_varlen_func(q, k, v, *packing, 127, 150, seqused_q=used, return_lse=True, **given)


def call_of_used(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **given: Any) -> Any:
    """With queries that are used alone."""
    return xeflash.flash_attn_varlen_func(
        q[used_rows()], k, v, starts(USED), starts(KEYS), 100, 150, return_lse=True, **given
    )


def check(got: Any, want: Any, far: float = 0.0, lse_of_others: Any = torch.inf) -> None:
    (out, lse), rows = (x.cpu() for x in got), used_rows()
    torch.testing.assert_close(out[rows], want[0], rtol=far, atol=far)
    torch.testing.assert_close(lse[:, rows], want[1], rtol=far, atol=far)
    others = torch.ones(len(out), dtype=torch.bool)
    others[rows] = False
    assert (out[others] == 0).all() and (lse[:, others] == lse_of_others).all()


MORE = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window_size": (30, 7), "softcap": 3.0},
    "alibi": {"alibi_slopes": ALIBI, "causal": True},
    "alibi-of-heads": {"alibi_slopes": ALIBI[0]},
    "chunk": {"attention_chunk": 16, "num_splits": 3},
    "keys": {"seqused_k": torch.tensor([40, 0, 23, 8, 120], dtype=torch.int32), "causal": True},
}


@pytest.mark.parametrize("more", MORE.values(), ids=MORE)
def test_used_queries_see_what_they_see_alone(more):
    check(call(*arrays(), **more), call_of_used(*arrays(), **more))


def test_sinks_of_other_queries_are_their_lse():
    sinks = torch.tensor([0.5, -1.0, 2.0, 3.0])
    check(call(*arrays(), s_aux=sinks), call_of_used(*arrays(), s_aux=sinks), lse_of_others=sinks[:, None])


def test_arrays_of_numpy():
    check(
        [torch.from_numpy(x) for x in call(*(x.numpy() for x in arrays()), put=torch.Tensor.numpy)],
        call_of_used(*arrays()),
    )


@pytest.mark.parametrize("keys", ["all", "some"])
def test_pages(keys):
    q, k, v = arrays()
    table = torch.randperm(50)[: 5 * 10].view(5, 10).int()
    pools = [torch.zeros(50, 16, 2, 64) for _ in range(2)]
    for b, (start, n) in enumerate(zip(starts(KEYS).tolist(), KEYS, strict=False)):
        for pool, x in zip(pools, (k, v), strict=True):
            pool.view(-1, 2, 64)[(table[b].long()[:, None] * 16 + torch.arange(16)).flatten()[:n]] = x[
                start : start + n
            ]
    lengths = torch.tensor(KEYS if keys == "all" else [9, 0, 23, 8, 120], dtype=torch.int32)
    got = xeflash.flash_attn_varlen_func(
        q, *pools, starts(ROWS), None, 127, 160, causal=True, block_table=table, seqused_k=lengths, return_lse=True,
        seqused_q=torch.tensor(USED, dtype=torch.int32),
    )  # fmt: skip
    check(got, call_of_used(q, k, v, causal=True, seqused_k=lengths), far=1e-5)


def test_queries_in_float8_have_scales_of_their_sequences():
    q, k, v = (x.to(torch.float8_e4m3fn) for x in arrays())
    scales = {f"{name}_scale": torch.rand(5, 2) + 0.5 for name in "qkv"}
    got = call(q, k, v, **scales)
    whole = torch.tensor(ROWS, dtype=torch.int32)
    meant = [
        (x.float() * scales[f"{name}_scale"].repeat_interleave(torch.tensor(lengths), 0)
         .repeat_interleave(x.shape[1] // 2, 1)[:, :, None]).bfloat16()
        for name, x, lengths in (("q", q, whole.tolist()), ("k", k, KEYS), ("v", v, KEYS))
    ]  # fmt: skip
    check(got, call_of_used(*meant))


@pytest.mark.parametrize("causal", [False, True])
def test_gradients(causal):
    leaves = [x.requires_grad_() for x in arrays()]
    rows, random = used_rows(), torch.Generator().manual_seed(1)
    dout = torch.randn(sum(ROWS), 4, 64, generator=random)
    got = torch.autograd.grad(call(*leaves, causal=causal)[0], leaves, dout)
    want = torch.autograd.grad(call_of_used(*leaves, causal=causal)[0], leaves, dout[rows])
    for x, y in zip(got, want, strict=True):
        torch.testing.assert_close(x, y)
    others = torch.ones(sum(ROWS), dtype=torch.bool)
    others[rows] = False
    assert (got[0][others] == 0).all()


def test_compiled():
    compiled = torch.compile(lambda *x: call(*x, causal=True), fullgraph=True, backend="aot_eager")
    check(compiled(*arrays()), call_of_used(*arrays(), causal=True))


@pytest.mark.gpu
@pytest.mark.xpu
def test_on_a_gpu(xpu):
    half = arrays(torch.float16)
    check(call(*(to_xpu(x) for x in half), put=to_xpu, causal=True), call_of_used(*half, causal=True), far=2e-3)


# ---- what is refused ----------------------------------------------------------------------------

INT32 = {"dtype": torch.int32}
WRONG = [
    ({"seqused_q": torch.tensor([5, 0, 24, 0, 9], **INT32)}, ValueError, r"0 to .*\(23\), got 24 for sequence 2"),
    ({"seqused_q": torch.tensor([5, -1, 9, 0, 9], **INT32)}, ValueError, r"0 to .*\(0\), got -1 for sequence 1"),
    ({"seqused_q": torch.tensor(USED[:4], **INT32)}, ValueError, r"shape \[sequences\], .*got \[4\] and \[6\]"),
    ({"seqused_q": torch.tensor(USED)}, TypeError, "must be int32, as cu_seqlens_q is .*got Tensor of torch.int64"),
    ({"seqused_q": np.array(USED, np.int32)}, TypeError, "must be int32, as cu_seqlens_q is .*got ndarray of int32"),
    ({"seqused_q": USED}, TypeError, "must be a torch tensor, .*got list"),
    ({"seqused_q": torch.zeros(5, **INT32, device="meta")}, ValueError, r"on the device of .* \(cpu\), got meta"),
    ({"dropout_p": 0.5}, NotImplementedError, "dropout_p must not come with seqused_q, got 0.5"),
    ({"score_mod": "s + b"}, NotImplementedError, "score_mod must not come with seqused_q, got str"),
    ({"seqused_k": torch.zeros(4, **INT32)}, ValueError, r"seqused_k must have 5 rows, .*got \[4\]"),
    ({"alibi_slopes": torch.zeros(4, 4)}, ValueError, r"alibi_slopes must have 5 rows, .*got \[4, 4\]"),
]


@pytest.mark.parametrize(("wrong", "error", "text"), WRONG, ids=[str(i) for i in range(len(WRONG))])
def test_what_makes_no_sense_is_refused(wrong, error, text):
    given = {"seqused_q": torch.tensor(USED, **INT32)} | wrong
    with pytest.raises(error, match=f"flash_attn_varlen_func: .*{text}"):
        xeflash.flash_attn_varlen_func(*arrays(), starts(ROWS), starts(KEYS), 127, 150, **given)
