"""Every argument of every public function does what it says, whichever way the call goes.

A table has an entry for each argument that a signature has: a value, and what it has to do: change the result, change
nothing (which few may), or be refused. A new argument without an entry fails. The same calls, by torch's operators and
compiled, give the same bits. Gradients with an argument are those of finite differences.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
import xeflash
from arrays import from_array, to_array
from fuzz.case import by_operator, passing_mode
from xeflash.api.attention.trees import packed
from xeflash.call import schema
from xeflash.selftest.attention.snippets import MASK_MOD, PERIOD

torch_generator = torch.Generator().manual_seed(0)
NAN = float("nan")


def drawn(*shape: int) -> torch.Tensor:
    """Numbers of 11 bits, so that the steps of differences are exact."""
    return torch.randn(shape, generator=torch_generator).half().float()


def int32(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@dataclass(frozen=True)
class Entry:
    value: Any
    does: str = "changes"  # same: it may not change what is computed; refused
    beside: dict[str, Any] = field(default_factory=dict)  # what both calls have, too
    text: str = ""  # of the refusal
    more: dict[str, Any] = field(default_factory=dict)  # what only the call with the argument has


def same(value: Any, **beside: Any) -> Entry:
    return Entry(value, "same", beside)


def refused(value: Any, text: str, **beside: Any) -> Entry:
    return Entry(value, "refused", beside, text)


# ---- the calls that arguments are added to -----------------------------------------------------

Q, K, V = drawn(2, 20, 4, 64), drawn(2, 33, 2, 64), drawn(2, 33, 2, 64)
STARTS, KEYS = int32(0, 2, 20), int32(0, 13, 33)
CACHES = {name: drawn(2, 64, 2, 64) for name in ("k_cache", "v_cache")}
NEW = {"k": drawn(2, 3, 2, 64), "v": drawn(2, 3, 2, 64), "cache_seqlens": int32(20, 40)}
TURNS = {name: drawn(70, 16) for name in ("rotary_cos", "rotary_sin")}
POOLS = {name: drawn(9, 16, 2, 64) for name in ("k", "v")}
DOCUMENTS = torch.arange(33).int() // 10
PICKS = (torch.arange(20)[:, None] % 9 + torch.arange(20)).int().expand(2, -1, -1)
PAGES = int32((3, 1, 0, 7), (2, 8, 4, 5))
INT8 = {name: torch.randint(-99, 99, (2, 64, 2, 64), generator=torch_generator).to(torch.int8) for name in CACHES}
PAGES_OF_TREES = POOLS | {"block_table": PAGES, "cu_seqlens_k": int32(0, 40, 90), "max_seqlen_k": 64}
FLOAT8_POOLS = {name: x.to(torch.float8_e4m3fn) for name, x in POOLS.items()}
FLOAT8_POOLS |= {"block_table": PAGES, "k_scale": 0.01, "v_scale": 0.01}
FLOAT8_POOLS |= {"q": Q[0, :2], "cu_seqlens_q": int32(0, 1, 2), "max_seqlen_q": 1}
INT8_KV = {"q": Q[:, :1], "k_scale": 0.01, "v_scale": 0.01} | {name: INT8[f"{name}_cache"][:, :33] for name in "kv"}
FLOAT8 = {name: x.to(torch.float8_e4m3fn) for name, x in (("q", Q), ("k", K), ("v", V))}
FLOAT8_Q = {"q": FLOAT8["q"], "k": K.bfloat16(), "v": V.bfloat16()}
FLOAT8_CACHES = {name: x.to(torch.float8_e4m3fn) for name, x in CACHES.items()}
PACKED_Q = {"q": Q[0], "cu_seqlens_q": STARTS, "max_seqlen_q": 18}

HEAD = {"input": drawn(9, 32), "linear_weight": drawn(70, 32)}
TOKENS = {"target": torch.arange(0, 63, 7)}

BASES: dict[str, dict[str, Any]] = {
    "attention": {name: x.transpose(1, 2).contiguous() for name, x in (("query", Q), ("key", K), ("value", V))}
    | {"enable_gqa": True},
    "flash_attn_func": {"q": Q, "k": K, "v": V},
    "flash_attn_kvpacked_func": {"q": Q, "kv": torch.stack([K, V], 2)},
    "flash_attn_qkvpacked_func": {"qkv": drawn(2, 20, 3, 4, 64)},
    "flash_attn_varlen_func": {"q": Q[0], "k": K[0], "v": V[0], "cu_seqlens_q": STARTS, "cu_seqlens_k": KEYS}
    | {"max_seqlen_q": 18, "max_seqlen_k": 20},
    "flash_attn_varlen_kvpacked_func": {"q": Q[0], "kv": torch.stack([K[0], V[0]], 1), "cu_seqlens_q": STARTS}
    | {"cu_seqlens_k": KEYS, "max_seqlen_q": 18, "max_seqlen_k": 20},
    "flash_attn_varlen_qkvpacked_func": {"qkv": drawn(20, 3, 4, 64), "cu_seqlens": STARTS, "max_seqlen": 18},
    "flash_attn_with_kvcache": {"q": Q[:, :1], **CACHES, "cache_seqlens": int32(20, 40)},
    "linear": {"x": drawn(3, 96), "weight": drawn(8, 96)},
    "matmul_softmax": {"a": drawn(3, 32), "b": drawn(32, 32)},
    "linear_cross_entropy": HEAD | TOKENS,
    "linear_log_prob": HEAD | TOKENS,
    "linear_top_k": HEAD | {"k": 3},
    "linear_argmax": HEAD,
    "sample": {"logits": 3 * drawn(40, 70), "seed": 3},
    "linear_sample": {"x": HEAD["input"], "weight": HEAD["linear_weight"], "seed": 3, "logit_scale": 0.1},
}
OF_8_BITS = {"weight": torch.arange(-48, 48).repeat(8, 1).to(torch.int8), "scales": torch.ones(3, 8), "group": 32}

# ---- what each argument does -------------------------------------------------------------------

SCORES = {
    "attention_chunk": Entry(2),
    "softcap": Entry(0.5),
    "window_size": Entry((2, 0)),
    "alibi_slopes": Entry(torch.tensor([0.5, 1.0, 0.1, 0.2])),
}
CAPTURES = {"near": torch.arange(9) % 4 / 2, "a": 0.5, "n": 3}
TEXT = "s * a + near[k_idx / n]"
SNIPPET = {
    "score_mod": Entry(TEXT, more={"captures": CAPTURES}),
    "captures": Entry(CAPTURES | {"a": 2.0}, beside={"score_mod": TEXT, "captures": CAPTURES}),
}


def blocks(rows: int, keys: int) -> dict[str, Entry]:
    """What leaves blocks out of these rows and keys: as many blocks of 16 as of more, so that either size will do."""
    listed = torch.arange(-(-rows // 16) * -(-keys // 16)).view(1, 1, -(-rows // 16), -1) % 3 > 0
    beside = {"block_mask": torch.arange(-(-keys // 32)).expand(1, 1, 1, -1) % 2 > 0, "block_size": (1 << 20, 32)}
    captures = {"reach": int32(0, 3, 7, 1), "kind": torch.ones(PERIOD).int(), "period": PERIOD}
    return {
        "mask_mod": Entry(MASK_MOD, more={"captures": captures}),  # a text that other tests have, too
        "block_mask": Entry(listed, more={"block_size": 16}),
        "block_size": refused(16, "block_mask must have shape", **beside),
    }


FLASH = SCORES | {
    "dropout_p": Entry(0.5),
    "softmax_scale": Entry(1.0),
    "causal": Entry(True),
    "deterministic": same(True),
    "return_attn_probs": Entry(True),
    "s_aux": Entry(torch.ones(4)),
}
VARLEN = FLASH | {
    "cu_seqlens_q": Entry(int32(0, 3, 20)),
    "cu_seqlens_k": Entry(int32(0, 14, 33)),
    "max_seqlen_q": refused(2, "max_seqlen_q must be at least the longest sequence"),
    "max_seqlen_k": refused(19, "max_seqlen_k must be at least the longest sequence"),
}
ENTRIES: dict[str, dict[str, Entry]] = {
    "attention": SCORES
    | SNIPPET
    | blocks(20, 33)
    | {
        "query": Entry(Q.transpose(1, 2) * 2),
        "key": Entry(K.transpose(1, 2) * 2),
        "value": Entry(V.transpose(1, 2) * 2),
        "attn_mask": Entry(torch.arange(33) % 3 > 0),
        "dropout_p": Entry(0.5, beside={"rng": (1, 2)}),
        "is_causal": Entry(True),
        "scale": Entry(1.0),
        "enable_gqa": refused(False, "must equal query.heads"),
        "bottom_right": Entry(True, beside={"is_causal": True}),
        "sinks": Entry(torch.ones(4)),
        "return_lse": Entry(True),
        "rng": Entry((3, 4), beside={"dropout_p": 0.5, "rng": (1, 2)}),
        "out": same(torch.full((2, 4, 20, 64), NAN)),
        "document_ids": Entry(DOCUMENTS, beside={"bottom_right": True}),
        "gather_kv_indices": Entry(PICKS),
    },
    "flash_attn_func": FLASH
    | SNIPPET
    | blocks(20, 33)
    | {"q": Entry(Q * 2), "k": Entry(K * 2), "v": Entry(V * 2), "num_splits": same(3, q=Q[:, :1])}
    | {"document_ids": Entry(DOCUMENTS), "gather_kv_indices": Entry(PICKS), "out": same(torch.full((2, 20, 4, 64), NAN))}
    | {"q_scale": Entry(2.0, beside=FLOAT8_Q), **{f"{x}_scale": Entry(0.02, beside=INT8_KV) for x in "kv"}},
    "flash_attn_kvpacked_func": FLASH
    | {"q": Entry(Q * 2), "kv": Entry(drawn(2, 33, 2, 2, 64)), "document_ids": Entry(DOCUMENTS)},
    "flash_attn_qkvpacked_func": FLASH | {"qkv": Entry(drawn(2, 20, 3, 4, 64)), "document_ids": Entry(torch.arange(20).int() // 7)},
    "flash_attn_varlen_func": VARLEN
    | SNIPPET
    | blocks(18, 20)
    | {
        "q": Entry(Q[0] * 2),
        "k": Entry(K[0] * 2),
        "v": Entry(V[0] * 2),
        "seqused_q": Entry(int32(1, 3)),
        "seqused_k": Entry(int32(5, 20)),
        "tree_mask": Entry(packed(torch.eye(18, dtype=torch.bool)), beside=PAGES_OF_TREES),
        "num_splits": same(3, q=Q[0, :2], cu_seqlens_q=int32(0, 1, 2), max_seqlen_q=1),
        "out": same(torch.full((20, 4, 64), NAN)),
        "q_scale": Entry(2.0, beside={name: x[0] for name, x in FLOAT8.items()}),
        "k_scale": Entry(0.02, beside=FLOAT8_POOLS),
        "v_scale": Entry(0.02, beside=FLOAT8_POOLS),
        "block_table": Entry(PAGES, beside={**POOLS, "block_table": PAGES.flip(0).contiguous()}),
    },
    "flash_attn_varlen_kvpacked_func": VARLEN | {"q": Entry(Q[0] * 2), "kv": Entry(drawn(33, 2, 2, 64))},
    "flash_attn_varlen_qkvpacked_func": FLASH
    | {
        "qkv": Entry(drawn(20, 3, 4, 64)),
        "cu_seqlens": Entry(int32(0, 3, 20)),
        "max_seqlen": refused(2, "must be at least the longest sequence"),
    },
    "flash_attn_with_kvcache": SCORES
    | SNIPPET
    | blocks(1, 64)
    | {
        "q": Entry(Q[:, :1] * 2),
        "k_cache": Entry(CACHES["k_cache"] * 2),
        "v_cache": Entry(CACHES["v_cache"] * 2),
        "k": Entry(NEW["k"] * 2, beside=NEW),
        "v": Entry(NEW["v"] * 2, beside=NEW),
        "rotary_cos": Entry(drawn(70, 16), beside=NEW | TURNS),
        "rotary_sin": Entry(drawn(70, 16), beside=NEW | TURNS),
        "cache_seqlens": Entry(7),
        "cache_batch_idx": Entry(int32(1, 0)),
        "cache_leftpad": Entry(int32(0, 9)),
        "block_table": Entry(PAGES, beside={f"{name}_cache": x for name, x in POOLS.items()}
                             | {"block_table": PAGES.flip(0).contiguous()}),
        "softmax_scale": Entry(1.0),
        "causal": Entry(True, beside={"q": Q}),
        "rotary_interleaved": Entry(False, beside=NEW | TURNS),
        "num_splits": same(3),
        "return_softmax_lse": Entry(True),
        "s_aux": Entry(torch.ones(4)),
        "beam_index": Entry(int32((0, 1) * 32, (1, 0) * 32)),
        "unified_max": same(1.0),
        "q_scale": Entry(2.0, beside={**FLOAT8_CACHES, "q": FLOAT8["q"][:, :1]}),
        "tree_mask": Entry(packed(torch.eye(20, dtype=torch.bool)), beside={"q": Q}),
        "rotary_positions": Entry(int32((7, 8, 8), (9, 9, 9)), beside=NEW | TURNS | {"q": Q[:, :3], "causal": True}),
        "cu_seqlens_q": Entry(int32(0, 3, 20), beside=PACKED_Q),
        "max_seqlen_q": refused(2, "max_seqlen_q must be at least the longest sequence", **PACKED_Q),
        "out": same(torch.full((2, 1, 4, 64), NAN)),
        "k_scale": Entry(0.02, beside={**INT8, "k_scale": 0.01, "v_scale": 0.01}),
        "v_scale": Entry(0.02, beside={**INT8, "k_scale": 0.01, "v_scale": 0.01}),
    },
    "linear": {
        "x": Entry(drawn(3, 96)),
        "weight": Entry(drawn(8, 96)),
        "bias": Entry(drawn(8)),
        "scales": Entry(torch.arange(24.0).view(3, 8), beside=OF_8_BITS),
        "zeros": Entry(torch.ones(3, 8, dtype=torch.int8), beside=OF_8_BITS),
        "group": refused(64, "scales must have the shape", **OF_8_BITS),
        "order": Entry(torch.arange(96).flip(0)),
    },
    "matmul_softmax": {
        "a": Entry(drawn(3, 32)),
        "b": Entry(drawn(32, 32)),
        "bias": Entry(drawn(32)),
        "scale": Entry(0.5),
        "b_layout": Entry("kn"),
        "log": Entry(True),
        "out": same(torch.full((3, 32), NAN)),
    },
}  # fmt: skip
LOGITS = {
    "input": Entry(drawn(9, 32)),
    "linear_weight": Entry(drawn(70, 32)),
    "linear_bias": Entry(8 * drawn(70)),
    "softcap": Entry(2.0),
    "logit_scale": Entry(-2.0),
}
ENTRIES["linear_cross_entropy"] = LOGITS | {
    "target": Entry(torch.arange(9)),
    "weight": refused(torch.ones(70), "weight must be None"),
    "reduction": Entry("sum"),
    "ignore_index": Entry(7),
    "label_smoothing": Entry(0.2),
    "z_loss": Entry(0.1),
    "divisor": Entry(4),
    "return_lse": Entry(True),
    "workspace": same(1 << 20),  # of the backward pass, which is another test's
}
ENTRIES["linear_log_prob"] = LOGITS | {"target": Entry(torch.arange(9))}
ENTRIES["linear_top_k"] = LOGITS | {"k": Entry(4)}
ENTRIES["linear_argmax"] = LOGITS | {"softcap": Entry(1e-3)}  # all are equal then, but for rounding
DRAWN = {
    "seed": Entry(torch.arange(40)),
    "position": Entry(5),
    "temperature": Entry(0.1),
    "top_k": Entry(1),
    "top_p": Entry(0.1),
    "min_p": Entry(0.9),
    "softcap": Entry(0.1),
    "logit_scale": Entry(9.0),
    "min_p_last": Entry(True, beside={"min_p": 0.4, "top_p": 0.5}),
}
DRAWN_BY_INT8 = {
    "weight": torch.arange(-48, 48).repeat(70, 1)[:, :32].to(torch.int8),
    "scales": torch.ones(1, 70),
}
ENTRIES["sample"] = DRAWN | {"logits": Entry(drawn(40, 70))}
ENTRIES["linear_sample"] = DRAWN | {
    "x": Entry(drawn(9, 32)),
    "weight": Entry(drawn(70, 32)),
    "bias": Entry(40 * drawn(70)),
    "seed": Entry(torch.arange(9)),
    "scales": Entry(torch.arange(70.0)[None] / 64, beside=DRAWN_BY_INT8),
    "zeros": Entry(torch.arange(70)[None].to(torch.int8), beside=DRAWN_BY_INT8),
    "group": refused(48, "group must be 32, 64, 128", **DRAWN_BY_INT8),
    "order": Entry(torch.arange(31, -1, -1)),
}
STATES = [drawn(2, 5, 4, 64), drawn(2, 4, 5)]
CASES = [(function, argument) for function, entries in ENTRIES.items() for argument in entries]


# ---- calls ---------------------------------------------------------------------------------------


def placed(value: Any, kind: str) -> Any:
    """Copies, as calls write to some of them."""
    if isinstance(value, torch.Tensor):
        return to_array(value.clone(), kind)
    return {name: placed(x, kind) for name, x in value.items()} if isinstance(value, dict) else value


def run(function: str, arguments: dict[str, Any], kind: str = "torch", call: Any = None) -> list[torch.Tensor]:
    """What is returned, and what the caches hold then."""
    given = {name: placed(x, kind) for name, x in arguments.items()}
    xeflash.manual_seed(0)
    result = (call or getattr(xeflash, function))(**given)
    results = [x for x in (result if isinstance(result, tuple) else (result,)) if x is not None]
    results += [given[name] for name in ("k_cache", "v_cache", "out") if name in given]
    return [x if isinstance(x, torch.Tensor) and x.is_cpu else from_array(x, kind) for x in results]


def both(function: str, argument: str) -> tuple[Entry, dict[str, Any], dict[str, Any]]:
    """The entry, the arguments without what it has, and with it."""
    entry = ENTRIES[function][argument]
    without = BASES[function] | entry.beside
    return entry, without, without | {argument: entry.value} | entry.more


def bits(results: list[torch.Tensor]) -> list[bytes]:
    return [x.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes() for x in results]


def public_functions() -> list[str]:
    others = ("keep_rows", "manual_seed", "merge_states", "pack_int4", "pack_tree_mask", "warm_up", "write_to_cache")
    return [name for name in xeflash.__all__ if name not in others]


@pytest.mark.parametrize("function", public_functions())
def test_every_argument_has_an_entry(function):
    assert set(ENTRIES[function]) == set(inspect.signature(getattr(xeflash, function)).parameters)


@pytest.mark.parametrize(("function", "argument"), CASES)
def test_arguments_do_something(function, argument):
    check_effect(function, argument, "torch")


@pytest.mark.long  # some 60 kernels
@pytest.mark.gpu
@pytest.mark.parametrize("function", ["attention", "flash_attn_varlen_func", "flash_attn_with_kvcache"])
def test_arguments_do_something_on_gpu(gpu, function):
    for argument in ENTRIES[function]:
        entry = ENTRIES[function][argument]
        if entry.does != "refused" or not argument.startswith("max_seqlen"):  # lengths on a device are trusted
            check_effect(function, argument, "gpu")


def check_effect(function: str, argument: str, kind: str) -> None:
    entry, without, with_ = both(function, argument)
    if entry.does == "refused":
        with pytest.raises((ValueError, TypeError, NotImplementedError), match=f"^{function}: .*{entry.text}"):
            run(function, with_, kind)
        return
    got, plain = run(function, with_, kind), run(function, without, kind)
    assert not any(torch.isnan(x.float()).any() for x in got), f"{function}({argument}=) gives NaN"
    if entry.does == "changes":
        assert bits(got[:1]) != bits(plain[:1]) or len(got) != len(plain), f"{function}({argument}=) changes nothing"
    else:
        np.testing.assert_allclose(got[0].float(), plain[0].float(), rtol=2e-3, atol=2e-3)


def test_manual_seed_chooses_the_numbers_of_dropout():
    def once(seed: int) -> list[torch.Tensor]:
        xeflash.manual_seed(seed)
        return [xeflash.flash_attn_func(Q, K, V, dropout_p=0.5)]

    assert list(inspect.signature(xeflash.manual_seed).parameters) == ["seed"]
    assert bits(once(1)) == bits(once(1)) != bits(once(2))


def test_each_state_changes_what_is_merged():
    assert list(inspect.signature(xeflash.merge_states).parameters) == ["states"]
    states = [*STATES, STATES[0] * 2, STATES[1] + 1]
    plain = bits(list(xeflash.merge_states(*states)))
    for i in range(4):
        changed = [x * 3 if j == i else x for j, x in enumerate(states)]
        assert bits(list(xeflash.merge_states(*changed)))[0] != plain[0], f"state {i}"


# ---- gradients -----------------------------------------------------------------------------------
# Central differences of the function itself, in float32 on the CPU. The steps are exact, as all that is drawn has the 11
# bits of float16. A loss is sum w y, where w is normal: where y is off by r roundings, which are independent, a loss is
# off by r 2^-24 |y|, and a difference by that / STEP. The sums of a row and its scores, of up to 20, make r about 10 at
# most; without a keyword, gradients are off by 3,000 at least.

STEP = 2.0**-8
STENCIL = {-2: 1 / 12, -1: -2 / 3, 1: 2 / 3, 2: -1 / 12}  # of the first derivative, exact for powers below the fifth
ROUNDINGS = 32
# Caches have no gradients; those of products are compared with autograd's, tests/products.
DIFFERENTIATED = [name for name in public_functions() if name == "attention" or "_func" in name]
WITH_GRADIENTS = {  # in place of entries that have no floats
    "attn_mask": Entry(drawn(4, 20, 33)),
    "captures": Entry(CAPTURES | {"a": torch.tensor(2.0)}, beside=SNIPPET["captures"].beside),
}
BECOMES = {theirs: [ours] for ours, theirs in schema.OF_ATTENTION.items()} | {  # rows that have other names
    "window_size": ["window_left", "window_right"],
    "gather_kv_indices": ["picks", "picked_spans"],
    "block_mask": ["blocks", "block_rows", "block_keys"],
    "block_size": ["block_rows", "block_keys"],
    "kv": ["k", "v"],
    "qkv": ["q", "k", "v"],
    "cu_seqlens": ["cu_seqlens_q", "cu_seqlens_k"],
    "max_seqlen": ["max_seqlen_q", "max_seqlen_k"],
}
NO_ARGUMENTS = {
    "function": "messages have it",
    "layout": "each function has its own",
    "words": "messages have them",
    "residual": "16 bits have it, of which differences tell little: tests/gradients.py does",
    **dict.fromkeys(("q_start", "k_start", "first_head", "all_heads"), "parts have it: tests/attention/test_parts.py"),
}


def rows_of(argument: str) -> list[str]:
    return BECOMES.get(argument, [argument])


DIFFERENTIABLE = [
    (function, argument)
    for function, argument in CASES
    if function in DIFFERENTIATED and argument != "q_scale" and not schema.FORWARD_ONLY.issuperset(rows_of(argument))
]


def test_every_row_of_the_backward_pass_is_differentiated():
    """Or the table above says why not."""
    rows = {row for _, argument in DIFFERENTIABLE for row in rows_of(argument)}
    assert set(schema.ROWS) - schema.FORWARD_ONLY - rows == set(NO_ARGUMENTS)


def with_floats(value: Any, change: Any) -> Any:
    """The value with each tensor of floats changed."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return change(value)
    return {name: with_floats(x, change) for name, x in value.items()} if isinstance(value, dict) else value


def losses(results: list[torch.Tensor]) -> torch.Tensor:
    """A weighted sum of all that is returned."""
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in results]
    return sum((w * x.double()).sum() for w, x in zip(weights, results, strict=True))


def differentiated(function: str, arguments: dict[str, Any]) -> tuple[dict[str, Any], Any, Any, float]:
    """The arguments in float32, their tensors and gradients by name, and |y|."""
    arguments = with_floats(arguments, lambda x: x.float().detach().requires_grad_())
    named = arguments | {f"captures.{name}": x for name, x in (arguments.get("captures") or {}).items()}
    tensors = {name: x for name, x in named.items() if isinstance(x, torch.Tensor) and x.requires_grad}
    results = run(function, arguments)
    gradients = torch.autograd.grad(losses(results), list(tensors.values()))
    size = torch.cat([x.detach().double().flatten() for x in results]).norm().item()
    return arguments, tensors, dict(zip(tensors, gradients, strict=True)), size


def difference(function: str, arguments: dict[str, Any], tensor: torch.Tensor, direction: torch.Tensor) -> float:
    """The derivative of the loss along a direction of one of the arguments."""
    total = 0.0
    for steps, factor in STENCIL.items():
        step = steps * STEP * direction
        moved = with_floats(arguments, lambda x, step=step: (x + step if x is tensor else x).detach())
        total += factor / STEP * losses(run(function, moved)).item()
    return total


@pytest.mark.parametrize(("function", "argument"), DIFFERENTIABLE)
def test_gradients_are_those_of_differences(function, argument):
    """Of each tensor beside the argument and, where it is learned, of the argument."""
    entry = WITH_GRADIENTS.get(argument, ENTRIES[function][argument])
    without = BASES[function] | entry.beside  # what is refused has another value in it
    with_ = without if entry.does == "refused" else without | {argument: entry.value} | entry.more
    arguments, tensors, got, size = differentiated(function, with_)
    plain = differentiated(function, without)[2]
    if any(row in schema.LEARNED for row in rows_of(argument)) or argument in WITH_GRADIENTS:
        assert any(name.partition(".")[0] == argument for name in tensors), "the entry must have a tensor of floats"

    generator = torch.Generator().manual_seed(2)
    limit = ROUNDINGS * 2.0**-24 * size / STEP
    effect = 0.0
    for name, tensor in tensors.items():
        for _ in range(2):
            direction = 2.0 * torch.randint(0, 2, tensor.shape, generator=generator) - 1
            want = difference(function, arguments, tensor, direction)
            along = (got[name].double() * direction).sum().item()
            assert abs(along - want) <= limit, f"the gradient of {name} with {argument}"
            if name in plain:
                effect = max(effect, abs((plain[name].double() * direction).sum().item() - want))
    assert entry.does != "changes" or effect > 50 * limit, f"{argument} changes no gradient"


# ---- the other ways ------------------------------------------------------------------------------


def below_mode(function: str) -> Any:
    def call(**arguments: Any) -> Any:
        with passing_mode():
            return getattr(xeflash, function)(**arguments)

    return call


def compiled(function: str) -> Any:
    torch.compiler.reset()
    return torch.compile(getattr(xeflash, function), backend="eager", fullgraph=True)


def outcome(function: str, arguments: dict[str, Any], call: Any = None) -> Any:
    try:
        return bits(run(function, arguments, call=call))
    except (ValueError, TypeError, NotImplementedError) as error:
        return type(error), str(error).partition(": ")[2]


BITS = ("block_mask", "block_size")  # operators take the bits: tests/attention/test_block_mask_forms.py
NO_OPERATOR = {  # for what becomes another call
    "attention": ("gather_kv_indices", *BITS),
    "flash_attn_func": ("k_scale", "v_scale", "gather_kv_indices", *BITS),
    "flash_attn_varlen_func": ("seqused_q", *BITS),
    "flash_attn_with_kvcache": ("cu_seqlens_q", "max_seqlen_q", *BITS),
    "linear_cross_entropy": ("weight",),
}


@pytest.mark.parametrize(("function", "argument"), CASES)
def test_operators_do_the_same(function, argument):
    """Below a dispatch mode, where the function takes its operator; and that operator by itself."""
    _, _, arguments = both(function, argument)
    want = outcome(function, arguments)
    assert outcome(function, arguments, below_mode(function)) == want
    if "packed" not in function and argument not in (*NO_OPERATOR.get(function, ()), "out", "q_scale"):
        assert outcome(function, arguments, lambda **more: by_operator(function, more)) == want


# One graph for what can be said at once; each argument by itself is long.
TOGETHER = [
    ("attention", "attn_mask is_causal scale sinks return_lse bottom_right"),
    ("attention", "is_causal softcap alibi_slopes"),
    ("flash_attn_func", "window_size softcap alibi_slopes s_aux return_attn_probs softmax_scale"),
    ("flash_attn_func", "document_ids return_attn_probs"),
    ("attention", "block_mask mask_mod is_causal return_lse"),
    ("flash_attn_varlen_func", "seqused_q seqused_k window_size softcap alibi_slopes s_aux return_attn_probs"),
    ("flash_attn_with_kvcache", "k v rotary_cos rotary_sin rotary_interleaved causal s_aux"),
]


@pytest.mark.parametrize(("function", "together"), TOGETHER)
def test_compiled_calls_do_the_same(function, together):
    arguments = dict(BASES[function])
    for argument in together.split():
        arguments |= ENTRIES[function][argument].beside | ENTRIES[function][argument].more
    arguments |= {argument: ENTRIES[function][argument].value for argument in together.split()}
    assert outcome(function, arguments, compiled(function)) == outcome(function, arguments)


@pytest.mark.long
@pytest.mark.parametrize(("function", "argument"), CASES)
def test_each_argument_compiled_does_the_same(function, argument):
    entry, _, arguments = both(function, argument)
    if entry.does != "refused":  # the error of a trace is torch's
        assert outcome(function, arguments, compiled(function)) == outcome(function, arguments)
