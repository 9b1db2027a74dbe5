"""Conditions that are the same for all lanes, in the machine code of the attention kernels' own headers.

Of `condition ? a : b` the front end makes one select of vectors by a scalar, and IGC code for its first lane only.
"""

import numpy as np
import pytest
from esimd import DEVICES, Kernels

KEYS = 32
ANY = 0x7FFFFFFF


@pytest.fixture(scope="module", params=DEVICES)
def kernels(request) -> Kernels:
    return Kernels("window", request.param, registers=256)


@pytest.mark.parametrize(("queries", "keys", "left", "right"), [(16, 20, 3, 2), (9, 7, 100, 0), (16, 32, ANY, 0)])
def test_a_key_is_hidden_from_all_queries_or_by_the_window(kernels, queries, keys, left, right):
    scores = np.arange(KEYS * kernels.lanes, dtype=np.float32).reshape(KEYS, kernels.lanes)
    out = kernels.zeros(scores.size, np.float32)
    kernels.run("hide", kernels.array(scores), out, *map(np.int32, (queries, keys, left, right)))
    k, q = np.indices(scores.shape)
    ahead = k - (q + keys - queries)
    seen = (k < keys) & (-left <= ahead) & (ahead <= right)
    assert np.array_equal(out.view().reshape(scores.shape), np.where(seen, scores, -np.inf))
