"""The descriptions that calls have, for kernels that are compiled without one: as forward.cpp and backward.cpp do."""

from __future__ import annotations

from typing import Any

from xeflash import tune
from xeflash.tune import xe
from xeflash.tune.desc import Desc


def describe(
    arch: str,
    dtype: str,
    head_dim: int,
    head_dim_v: int,
    queries: int,
    group: int = 1,
    *,
    few_tiles: bool = False,
    negative_scale: bool = False,
    page: int = 0,
    access: str = "block2d",
    **features: Any,
) -> Desc:
    """A call with so many queries, and heads of them to one of K and V, which share a bias if there is one.

    CPUs take a description of fewer queries, too, where tiles are few for their cores.

    `few_tiles`: too few for the device, of many keys. `page`: the size of the cache's pages, 0 if it has none.
    `access`: the widest that the call's arrays allow. `features`: the other fields of Desc that it sets.
    """
    schedule = tune.schedule(arch)
    of_heads = ("score_mod", "dropout")
    packed_heads = split_keys = False
    if decode := queries == 1 and not features.get("dropout"):
        rows = -(-group // -(-group // schedule.tile_rows))
    else:
        packed_heads = (
            group > 1
            and queries <= schedule.packed_queries
            and "Alibi" not in features.get("hooks", ())
            and not any(map(features.get, of_heads))
        )
        split_keys = few_tiles and schedule.turns > 0
        rows = _tile_rows(queries * (group if packed_heads else 1))
    page_unit = 16
    while page and page_unit < schedule.page_unit and page % (2 * page_unit) == 0:
        page_unit *= 2
    if features.get("cache") == "beam" and access == "block2d":
        access = "dwords"
    return Desc(
        "flash_decode" if decode else "flash_fwd", arch, dtype, head_dim, head_dim_v, rows,
        negative_scale=negative_scale and _plain(features), packed_heads=packed_heads, split_keys=split_keys,
        page_unit=page_unit, access=_access(arch, access), **features,
    )  # fmt: skip


def describe_backward(
    algorithm: str,
    arch: str,
    dtype: str,
    head_dim: int,
    head_dim_v: int,
    queries: int,
    keys: int,
    *,
    negative_scale: bool = False,
    access: str = "block2d",
    **features: Any,
) -> Desc:
    """A kernel of the backward pass, by its algorithm, or attention_probs; the rest as in `describe`."""
    rows = _tile_rows(keys if algorithm in ("flash_bwd", "flash_bwd_dkv") else queries)
    rows = max(rows, tune.schedule(arch).backward_rows)
    if algorithm == "flash_bwd_heads":
        rows = 1
    return Desc(
        algorithm, arch, dtype, head_dim, head_dim_v, rows,
        negative_scale=negative_scale and _plain(features), access=_access(arch, access), **features,
    )  # fmt: skip


def _tile_rows(filled: int) -> int:
    rows = 16
    while rows < 128 and rows < filled:
        rows *= 2
    return rows


def _plain(features: dict[str, Any]) -> bool:
    """Whether nothing else changes the scores."""
    return not any(map(features.get, ("hooks", "bias", "score_mod")))


def _access(arch: str, widest: str) -> str:
    if arch not in xe.ARCHITECTURES:
        return ""
    return "dwords" if arch == "dg2" and widest == "block2d" else widest
