"""The answers of the public functions to many calls, good and bad, so that two versions of xeflash can be compared.

    python tests/answers.py record OUT.json              with the xeflash that is installed; a minute or two
    python tests/answers.py compare BEFORE.json AFTER.json

A call is one that works with one argument replaced by each of some 60 values, or left out: directly, without gradients,
with them, below a dispatch mode (where operators run), and under autocast. An answer is a hash of the results and
gradients, or the type and the text of the error. Records hold for the machine that made them: compare those of one. Run
both before and after a change of what lies between a call and the extension: it should change no result.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xeflash
from torch.utils._python_dispatch import TorchDispatchMode

_drawn = torch.Generator().manual_seed(0)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers that are the same in each run."""
    return torch.randn(shape, generator=_drawn).to(dtype)


def int32(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


# ---- calls that work ----------------------------------------------------------------------------

Q, K, V = normal(2, 5, 4, 64), normal(2, 33, 2, 64), normal(2, 33, 2, 64)
STARTS, STARTS_K = int32(0, 2, 5), int32(0, 13, 33)
LONGEST = {"max_seqlen_q": 3, "max_seqlen_k": 20}
HEADS_FIRST = {name: x.transpose(1, 2).contiguous() for name, x in (("query", Q), ("key", K), ("value", V))}
ATTENTION = {**HEADS_FIRST, "enable_gqa": True}
FLASH = {"q": Q, "k": K, "v": V}
VARLEN = {"q": Q[0], "k": K[0], "v": V[0], "cu_seqlens_q": STARTS, "cu_seqlens_k": STARTS_K, **LONGEST}
CACHE = {"k_cache": normal(2, 64, 2, 64), "v_cache": normal(2, 64, 2, 64), "cache_seqlens": int32(20, 40)}
PAGES = {"k": normal(9, 16, 2, 64), "v": normal(9, 16, 2, 64), "block_table": int32((3, 1, 0, 7), (2, 8, 4, 5))}
IN_8_BITS = {"k": (K * 30).char(), "v": (V * 30).char()}
PICKS = (torch.arange(5)[:, None] + torch.arange(20)).int().expand(2, -1, -1)
LINEAR = {"x": normal(5, 64), "weight": normal(48, 64), "bias": normal(48)}
HEAD = {"input": normal(6, 64), "linear_weight": normal(50, 64), "linear_bias": normal(50)}
TARGET = torch.tensor([3, 0, 49, -100, 7, 7])

CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "attention": ("attention", ATTENTION),
    "three dimensions": ("attention", {name: x[0, :2] for name, x in HEADS_FIRST.items()}),
    "five dimensions": ("attention", {**{name: x[:, None] for name, x in HEADS_FIRST.items()}, "enable_gqa": True}),
    "attention on picks": ("attention", {**ATTENTION, "gather_kv_indices": PICKS}),
    "attention of numpy": ("attention", {**{name: x.numpy() for name, x in HEADS_FIRST.items()}, "enable_gqa": True}),
    "flash": ("flash_attn_func", FLASH),
    "flash in bf16": ("flash_attn_func", {name: x.bfloat16() for name, x in FLASH.items()}),
    "flash on picks": ("flash_attn_func", {**FLASH, "gather_kv_indices": PICKS}),
    "flash of numpy": ("flash_attn_func", {name: x.numpy() for name, x in FLASH.items()}),
    "kv packed": ("flash_attn_kvpacked_func", {"q": Q, "kv": torch.stack([K, V], 2)}),
    "qkv packed": ("flash_attn_qkvpacked_func", {"qkv": normal(2, 5, 3, 4, 64)}),
    "k and v in 8 bits": ("flash_attn_func", {"q": Q[:, :1], **IN_8_BITS, "k_scale": 0.5, "v_scale": 2.0}),
    "float8 q": (
        "flash_attn_func",
        {"q": Q.to(torch.float8_e4m3fn), "k": K.bfloat16(), "v": V.bfloat16(), "q_scale": 0.5},
    ),
    "varlen": ("flash_attn_varlen_func", VARLEN),
    "varlen, used": ("flash_attn_varlen_func", {**VARLEN, "seqused_q": int32(1, 2)}),
    "varlen on pages": ("flash_attn_varlen_func", {**VARLEN, **PAGES}),
    "varlen, kv packed": (
        "flash_attn_varlen_kvpacked_func",
        {**{name: x for name, x in VARLEN.items() if name not in "kv"}, "kv": torch.stack([K[0], V[0]], 1)},
    ),
    "varlen, qkv packed": (
        "flash_attn_varlen_qkvpacked_func",
        {"qkv": normal(5, 3, 4, 64), "cu_seqlens": STARTS, "max_seqlen": 3},
    ),
    "cache": ("flash_attn_with_kvcache", {"q": Q[:, :1], **CACHE}),
    "cache, new keys": (
        "flash_attn_with_kvcache",
        {"q": Q[:, :1], **CACHE, "cache_seqlens": 7, "k": normal(2, 3, 2, 64), "v": normal(2, 3, 2, 64)},
    ),
    "cache, packed": (
        "flash_attn_with_kvcache",
        {"q": Q[0], **CACHE, "cu_seqlens_q": STARTS, "max_seqlen_q": 3},
    ),
    "linear": ("linear", LINEAR),
    "linear, int8": (
        "linear",
        {**LINEAR, "weight": (normal(48, 64) * 30).char(), "scales": normal(2, 48), "group": 32},
    ),
    "matmul_softmax": ("matmul_softmax", {"a": normal(2, 5, 64), "b": normal(2, 9, 64), "bias": normal(5, 9)}),
    "cross entropy": ("linear_cross_entropy", {**HEAD, "target": TARGET}),
    "log prob": ("linear_log_prob", {**HEAD, "target": TARGET.clamp(min=0)}),
    "top k": ("linear_top_k", {**HEAD, "k": 3}),
    "argmax": ("linear_argmax", HEAD),
    "sample": ("sample", {"logits": normal(4, 50), "seed": 1}),
    "linear_sample": ("linear_sample", {**LINEAR, "seed": int32(1, 2, 3, 4, 5).long(), "temperature": 0.8}),
}

# ---- what replaces an argument ------------------------------------------------------------------

VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 0.5, -1.5, float("nan"), float("inf"), 2**70, "x", "s * 2", [1.0], (1, 2), (2, None),
    (-2, 1), {"a": 1}, {}, object, np.float32(0.5), np.int64(2), normal(4), normal(2, 4), normal(3, 3), int32(1, 2),
    int32(0, 2, 5), int32(3), torch.tensor(0.5), normal(2, 2), normal(1), normal(5), normal(50), Q.clone(), Q[0].clone(),
    K.clone(), normal(2, 33, 2, 32), normal(2, 5, 2, 64), normal(2, 33, 3, 64), normal(3, 33, 2, 64), normal(2, 64, 2, 64),
    normal(2, 64, 2, 32), K.half(), K.long(), K.to_sparse(), normal(4).half(), torch.zeros(2, 33).int(), normal(6, 64),
    torch.ones(2, 5, 33).int(), normal(5, 33), normal(2, 4, 5, 33), normal(4).requires_grad_(), Q.clone().requires_grad_(),
    K.clone().requires_grad_(), torch.empty(4, device="meta"), torch.nested.nested_tensor([normal(1), normal(2)]),
]  # fmt: skip
OF_OTHERS = 25  # the first of them are tried for keywords that a function does not have
OTHERS = [
    "learnable_sink",
    "sinks",
    "page_table",
    "q_descale",
    "k_descale",
    "v_descale",
    "return_lse",
    "return_softmax_lse",
    "pack_gqa",
    "fa_version",
    "qv",
    "mask_mod",
    "seqused_q",
    "cu_seqlens_k_new",
    "rotary_seqlens",
    "num_heads_q",
    "nonsense",
    "s_aux",
    "softcap",
    "sm_margin",
]
WAYS = ("plain", "without gradients", "gradients", "operators", "autocast")


class Operators(TorchDispatchMode):
    """Has each call pass torch's dispatcher."""

    def __torch_dispatch__(self, function: Any, _types: Any, arguments: Any = (), more: Any = None) -> Any:
        return function(*arguments, **(more or {}))


def answer(name: str, given: dict[str, Any], way: str) -> Any:
    """What a function gives: hashes, or an error."""
    given = {key: _fresh(x) for key, x in given.items()}
    xeflash.manual_seed(0)
    torch.manual_seed(0)
    function = getattr(xeflash, name)
    try:
        if way == "gradients":
            return _with_gradients(function, given)
        with torch.set_grad_enabled(way == "plain" or way == "operators"):
            if way == "operators":
                with Operators():
                    return _digest(function(**given))
            with torch.autocast("cpu", torch.bfloat16, enabled=way == "autocast"):
                return _digest(function(**given))
    except Exception as error:
        return [type(error).__name__, str(error)[:400]]


def _with_gradients(function: Any, given: dict[str, Any]) -> Any:
    leaves = [x for x in given.values() if isinstance(x, torch.Tensor) and x.is_floating_point() and x.itemsize > 1]
    leaves = [x.requires_grad_() for x in leaves if not (x.is_sparse or x.is_nested)]
    results = function(**given)
    first = results[0] if isinstance(results, tuple) else results
    return [_digest(results), _digest(torch.autograd.grad(first.float().sum(), leaves, allow_unused=True))]


def _fresh(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return x if x.is_meta or x.is_nested else x.detach().clone().requires_grad_(x.requires_grad)
    return x.copy() if isinstance(x, np.ndarray) else x


def _digest(x: Any) -> Any:
    if isinstance(x, tuple | list):
        return [_digest(y) for y in x]
    if isinstance(x, torch.Tensor) and not x.is_meta:
        told = [str(x.dtype), list(x.shape), list(x.stride()), x.requires_grad]
        return [*told, _hash(x.detach().contiguous().view(torch.uint8).numpy() if x.dim() else x.detach().numpy())]
    if isinstance(x, np.ndarray):
        return [str(x.dtype), list(x.shape), _hash(x)]
    return repr(x)


def _hash(x: np.ndarray[Any, Any]) -> str:
    return hashlib.sha1(np.ascontiguousarray(x).tobytes()).hexdigest()[:12]


def calls() -> Iterator[tuple[str, str, dict[str, Any], str]]:
    """Each call's label, function, arguments and way."""
    for label, (name, base) in CALLS.items():
        keywords = inspect.signature(getattr(xeflash, name)).parameters
        for way in WAYS[:1] if "numpy" in label else WAYS:
            yield f"{label}|{way}|as it is", name, base, way
            for keyword in keywords:
                for at, value in enumerate(VALUES):
                    is_slow = keyword == "score_mod" and isinstance(value, str)  # a snippet of its own is compiled
                    if not is_slow and (way in ("plain", "gradients") or not at % 3):
                        yield f"{label}|{way}|{keyword}|{at}", name, {**base, keyword: value}, way
                if keyword in base:
                    yield (
                        f"{label}|{way}|{keyword}|left out",
                        name,
                        {k: x for k, x in base.items() if k != keyword},
                        way,
                    )
            for keyword in OTHERS if label in ("flash", "varlen", "varlen on pages", "cache", "attention") else ():
                for at, value in enumerate(VALUES[:OF_OTHERS]):
                    if keyword not in keywords and (way == "plain" or not at % 4):
                        yield f"{label}|{way}|{keyword}|{at}", name, {**base, keyword: value}, way


def record(path: Path) -> None:
    """Writes the answers to all calls."""
    torch.set_num_threads(1)
    found = {label: answer(name, given, way) for label, name, given, way in calls()}
    path.write_text(json.dumps(found, indent=0))
    errors = sum(is_error(x) for x in found.values())
    print(f"{len(found)} calls, of which {errors} are refused")


def is_error(x: Any) -> bool:
    return isinstance(x, list) and len(x) == 2 and isinstance(x[0], str) and "Error" in x[0]


def compare(before: dict[str, Any], after: dict[str, Any], most: int) -> dict[str, list[str]]:
    """The labels of calls that differ, by how they do; prints some of each kind that are not alike."""
    kinds = collections.defaultdict(list)
    for label in before.keys() & after.keys():
        old, new = before[label], after[label]
        if old != new:
            errors = is_error(old), is_error(new)
            same = {(True, True): "error", (True, False): "no error any more", (False, True): "a new error"}
            kind = same.get(errors, "result")
            kinds["text" if kind == "error" and old[0] == new[0] else kind].append(label)
    print(
        f"{len(before.keys() & after.keys())} calls compared, {len(before.keys() ^ after.keys())} in one record alone"
    )
    for kind, labels in sorted(kinds.items()):
        print(f"==== {kind}: {len(labels)}")
        alike = {
            (x.rsplit("|", 1)[0].replace("|plain", ""), re.sub(r"[\d.]+", "#", str(before[x])[:60])): x for x in labels
        }
        for label in sorted(alike.values())[:most]:
            print(f"{label}\n    - {str(before[label])[:300]}\n    + {str(after[label])[:300]}")
    return dict(kinds)


def main() -> None:
    """Runs it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record").add_argument("out", type=Path)
    compare_parser = commands.add_parser("compare")
    compare_parser.add_argument("before", type=Path)
    compare_parser.add_argument("after", type=Path)
    compare_parser.add_argument("--most", type=int, default=20, help="examples of each kind; default 20")
    given = parser.parse_args()
    if given.command == "record":
        record(given.out)
    elif compare(json.loads(given.before.read_text()), json.loads(given.after.read_text()), given.most):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
