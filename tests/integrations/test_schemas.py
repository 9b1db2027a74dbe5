"""The operators' schemas stay: torch.compile keeps code that spells their defaults out."""

from pathlib import Path

import torch
import xeflash.torch_ops  # noqa: F401  registers them

NAMES = (
    "attention",
    "attention_backward",
    "flash_attn",
    "flash_attn_varlen",
    "flash_attn_with_kvcache",
    "linear",
    "linear_cross_entropy",
    "linear_cross_entropy_backward",
    "linear_cross_entropy_with_gradients",
    "linear_top_k",
    "matmul_softmax",
    "merge_states",
    "sample",
)


def words(schema):
    """The arguments by position, in order, then the others, which have none, then the results."""
    arguments, _, results = schema.rpartition(" -> ")
    by_place, _, others = arguments.partition(", *, ")
    return [*by_place.split(", "), *sorted(others.rstrip(")").split(", ")), results]


def test_schemas_are_those_of_the_file():
    """A keyword that is new is added to the file; a default that changes is another operator's."""
    kept = Path(__file__).with_name("schemas.txt").read_text(encoding="utf-8").splitlines()
    found = [str(getattr(torch.ops.xeflash, name).default._schema) for name in NAMES]
    assert [words(schema) for schema in found] == [words(schema) for schema in kept]
