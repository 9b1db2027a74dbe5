"""Documents in rows of Transformers: a row may hold several, none of which may see another.

Three ways say so. ``position_ids`` begin again within a row. ``cu_seq_lens_q``, ``cu_seq_lens_k``, ``max_length_q`` and
``max_length_k`` are what a collator without padding passes. A mask function of Transformers numbers the documents.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary
from transformers.utils.import_utils import is_tracing

from xeflash import flash_attn_varlen_func

NAME = "xe_attention"  # for every name with "flash" in it, Transformers looks for a package of its own


class Documents(NamedTuple):
    """The documents of all rows, one row after the other."""

    starts_q: Tensor  # int32 (documents + 1,)
    starts_k: Tensor
    longest_q: int
    longest_k: int

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """Attends from query (B, H, Sq, D) to key and value (B, Hk, Sk, D) within documents; returns (B, Sq, H, Dv)."""
        batch, _, rows, _ = query.shape
        q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (query, key, value))
        starts_q, starts_k = self.starts_q.int(), self.starts_k.int()
        out: Tensor = flash_attn_varlen_func(
            q, k, v, starts_q, starts_k, self.longest_q, self.longest_k, **options
        )  # fmt: skip
        return out.unflatten(0, (batch, rows))

    def visible(self, batch: int, rows: int, keys: int, device: torch.device, *, aligned: bool) -> Tensor:
        """Returns the documents as a mask (B, 1, Sq, Sk): whether a query and a key are of one document.

        If `aligned`, whatever else depends on positions in a row must be the same for positions in a document.
        """
        if aligned and not (self.starts_q is self.starts_k or torch.equal(self.starts_q, self.starts_k)):
            raise NotImplementedError(
                f"{NAME}: cu_seq_lens_q and cu_seq_lens_k must be equal where padding or a position_bias hides keys, "
                f"got {self.starts_q.tolist()} and {self.starts_k.tolist()}"
            )
        query_documents, key_documents = (
            torch.bucketize(torch.arange(batch * n, device=device), starts.to(device), right=True).view(batch, n)
            for n, starts in ((rows, self.starts_q), (keys, self.starts_k))
        )
        return query_documents[:, None, :, None] == key_documents[:, None, None, :]


# ---- cu_seq_lens --------------------------------------------------------------------------------


def take_documents(given: MutableMapping[str, Any]) -> Documents | None:
    """Takes cu_seq_lens and max_length out of `given`; returns the documents that they describe, or None."""
    names = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k")
    starts_q, starts_k, longest_q, longest_k = (given.pop(name, None) for name in names)
    if starts_q is None or starts_k is None:
        for name, x in zip(names, (starts_q, starts_k, longest_q, longest_k), strict=True):
            if x is not None:
                raise ValueError(f"{NAME}: {name} must come with both cu_seq_lens_q and cu_seq_lens_k, got it without")
        return None
    longest = [
        int(starts.diff().max()) if said is None else int(said)  # waits for a device where it was not told a number
        for starts, said in ((starts_q, longest_q), (starts_k, longest_k))
    ]
    return Documents(starts_q, starts_k, *longest)


# ---- position_ids -------------------------------------------------------------------------------

_known: Any = WeakIdKeyDictionary()  # position_ids: {mask, or position_ids without one: (version, Documents or None)}


def packed(position_ids: Any, padding: Tensor | None, batch: int, rows: int) -> Documents | None:
    """Returns the documents of rows whose positions begin again, or None; `padding` (B, rows) is False at empty places.

    To look into positions waits for their device. What was found is remembered, so the layers of a forward pass wait
    together once, and twice more if there are several documents.
    """
    if not _tells(position_ids, batch, rows):
        return None
    if position_ids.is_inference():  # nothing counts its changes
        return _find(position_ids, padding, batch)
    found = _known.setdefault(position_ids, WeakIdKeyDictionary())
    key = position_ids if padding is None else padding
    documents: Documents | None
    version, documents = found.get(key, (None, None))
    if version != (position_ids._version, batch):
        documents = _find(position_ids, padding, batch)
        found[key] = (position_ids._version, batch), documents
    return documents


def mask_of(numbers: Tensor | None, position_ids: Any, batch: int, rows: int) -> Tensor | None:
    """Returns the documents of rows in a graph, whose positions are unknown, as a mask (B, 1, rows, rows), or None.

    `numbers` are those of the documents, if a mask function gave them.
    """
    if numbers is None:
        if not _tells(position_ids, batch, rows):
            return None
        begins = position_ids[:, 1:] <= position_ids[:, :-1]
        numbers = torch.nn.functional.pad(begins.cumsum(1), (1, 0))
    return (numbers[:, None, :, None] == numbers[:, None, None, :]).expand(batch, -1, -1, -1)


def _tells(position_ids: Any, batch: int, rows: int) -> bool:
    """Returns whether position_ids has positions for `rows` tokens in each row; one row may stand for all."""
    if not isinstance(position_ids, Tensor) or rows < 2 or position_ids.dim() != 2:
        return False
    return position_ids.shape[0] in (1, batch) and position_ids.shape[1] == rows


def _find(position_ids: Tensor, padding: Tensor | None, batch: int) -> Documents | None:
    begins = position_ids[:, 1:] <= position_ids[:, :-1]
    if padding is None:
        return documents_from(begins.expand(batch, -1))
    begins = begins & padding[:, 1:] & padding[:, :-1]  # positions of padding say nothing
    return documents_from(begins | padding.diff(dim=1)) if begins.any() else None


def documents_from(begins: Tensor) -> Documents | None:
    """Returns the documents in which each token marked by `begins` (B, rows - 1) starts one, or None for one a row."""
    places = torch.nn.functional.pad(begins, (1, 0), value=True).flatten().nonzero().flatten()
    if len(places) == len(begins):
        return None
    starts = torch.nn.functional.pad(places, (0, 1), value=begins.shape[0] * (begins.shape[1] + 1)).int()
    longest = int(starts.diff().max())
    return Documents(starts, starts, longest, longest)


def numbered(mask: Tensor) -> Documents | None:
    """Returns the documents of a mask (B, rows) that numbers them."""
    return None if is_tracing(mask) else documents_from(mask.diff(dim=1) != 0)
