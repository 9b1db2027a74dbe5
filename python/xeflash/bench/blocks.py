"""Random masks of blocks, and the keywords of calls that have one."""

from __future__ import annotations

from typing import Any

import numpy as np

from xeflash.api.attention.bits import in_words
from xeflash.bench.cases import Case

SEED = 0


def random_blocks(case: Case, seed: int = SEED) -> Any:
    """Returns which blocks of keys each block of rows lists, (QB, KB): `case.picked` of them, drawn at random."""
    rows, keys = (-(-length // case.block_size) for length in (case.seq_q, case.seq_k))
    order = np.random.default_rng(seed).random((rows, keys)).argsort(1)
    return order.argsort(1) < case.picked


def keywords_of(case: Case, seed: int = SEED) -> dict[str, Any]:
    """Returns the mask of a case as the keywords of a call: all listed blocks are full.

    The blocks of a call are powers of two; larger ones are made of them.
    """
    size = case.block_size & -case.block_size
    listed = random_blocks(case, seed).repeat(case.block_size // size, 0).repeat(case.block_size // size, 1)
    listed = listed[: -(-case.seq_q // size), : -(-case.seq_k // size)]
    by_rows, by_keys = (in_words(np, x).reshape(-1) for x in (listed, listed.T))
    words = np.concatenate([by_rows, by_rows, by_keys, by_keys])[None, None]
    return {"blocks": words, "block_rows": size, "block_keys": size}
