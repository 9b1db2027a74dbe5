"""The shares of a case's call over a device, without running it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xeflash import _core
from xeflash.bench import kv_cache
from xeflash.bench.blocks import keywords_of
from xeflash.bench.cases import Case
from xeflash.call.schema import BHSD, BSHD, DEFAULTS_OF_ATTENTION
from xeflash.jit.calls import Shares, shares_of
from xeflash.runtime.interop import Placeholder
from xeflash.tune.desc import DTYPE_NAMES, AnyDesc, Desc
from xeflash.tune.table import level_of, level_of_schedule


def call_of(case: Case, make: Callable[[tuple[int, ...], str], Any] = Placeholder, **more: Any) -> Callable[[], object]:
    """Returns the call on contiguous (B, H, S, D) arrays, without memory; of a training step, that of its gradients.

    That of a tree, or of a cache with a type of its own, reads (B, S, H, D). `make` makes an array of a shape and a
    type; `more` are further keywords.
    """
    if case.phase == "verify" or case.kv_dtype:
        return _on_cache(case, make)

    def array(heads: int, length: int) -> Any:
        return make((case.batch, heads, length, case.head_dim), DTYPE_NAMES[case.dtype])

    given: dict[str, Any] = {"function": "attention", "layout": BHSD, **DEFAULTS_OF_ATTENTION, "enable_gqa": True}
    given |= {"q": array(case.heads, case.seq_q), "k": array(case.kv_heads, case.seq_k)}
    given |= {"v": array(case.kv_heads, case.seq_k), "causal": case.causal, **more}
    if case.share is not None:
        given |= {name: make(x.shape, "int32") if name == "blocks" else x for name, x in keywords_of(case).items()}
    if not case.gradients:
        return lambda: _core.forward(**given)
    given |= {name: array(case.heads, case.seq_q) for name in ("out", "dout")}
    given["lse"] = make((case.batch, case.heads, case.seq_q), "float32")
    return lambda: _core.backward(wanted=("q", "k", "v"), **given)


def _on_cache(case: Case, make: Callable[[tuple[int, ...], str], Any]) -> Callable[[], object]:
    given = {"q": make((case.batch, case.seq_q, case.heads, case.head_dim), DTYPE_NAMES[case.dtype])}
    given |= {name: make(*size) for name, size in kv_cache.array_sizes(case).items()}
    if case.phase == "verify":
        given["tree_mask"] = make((1, case.seq_q, -(-case.seq_q // 32)), "int32")
    return lambda: _core.forward(function="flash_attn_with_kvcache", layout=BSHD, **given)


def shares_here(case: Case, device: str, units: int | None = None) -> Shares:
    """Returns how it is on this machine's "cpu" or "xpu", with its compute units or others."""
    kind, backend = ("cpu", "opencl") if device == "cpu" else ("gpu", "level_zero")
    for facts in _core.devices():
        if (facts["type"], facts["backend"]) == (kind, backend) and facts["arch"]:
            units = units or facts["compute_units"]
            return shares_of(call_of(case), facts["arch"], units, facts["name"], facts["driver"])
    raise RuntimeError(f"{device} must be a device of this machine that has kernels; see: xeflash doctor")


def levels_of(kernels: Sequence[AnyDesc]) -> str:
    """Returns the levels that chose the tiles of a call's kernels, and the one that chose its schedule if it did."""
    tiles = ", ".join(dict.fromkeys(level_of(desc).name for desc in kernels if isinstance(desc, Desc)))
    desc = kernels[0]
    schedule = level_of_schedule(desc.arch, desc.device, desc.driver).name
    return tiles if schedule == "table" else f"{tiles}; schedule: {schedule}"


def fields_of(shares: Shares) -> dict[str, Any]:
    """Returns the fields of a row."""
    return {
        "threads": shares.widest.threads,
        "percent_of_device": shares.percent(shares.widest),
        "splits": shares.splits,
        "partial_bytes": shares.partial_bytes,
    }
