"""Every way over ranks against one process in float64, forward and backward, with each feature."""

from dataclasses import replace

import attending
import pytest
import ranks
from attending import Case

WAYS = ("ring", "all_gather", "all_to_all")
ALL = (*WAYS, "ring+all_to_all", "all_gather+all_to_all")
DOCUMENTS = (30, 0, 1, 100, 13)  # 144 tokens

FEATURES = [
    ({}, ALL),
    ({"causal": False}, ALL),
    ({"shards": "ranges", "chunk": 40}, ALL),
    ({"dtype": "bfloat16", "features": "lse"}, ALL),
    ({"dtype": "float16", "features": "sinks", "heads": (8, 4)}, ALL),
    ({"window": (30, -1), "shards": "ranges", "chunk": 32, "world": 4}, WAYS),
    ({"window": (9, 5), "causal": False, "world": 3}, WAYS),
    ({"window": (40, -1), "world": 3, "chunk": 16}, WAYS),
    ({"window": (-1, 20), "causal": False, "shards": "ranges", "chunk": 32, "world": 3}, WAYS),
    ({"features": "softcap+sinks+lse", "world": 3, "scale": -0.2}, WAYS),
    ({"features": "alibi", "world": 4}, (*WAYS, "ring+all_to_all")),
    ({"features": "alibi_bh+sinks", "causal": False, "world": 3}, WAYS),
    ({"features": "snippet", "world": 2}, (*WAYS, "all_gather+all_to_all")),
    ({"features": "dropout", "world": 2}, (*WAYS, "ring+all_to_all")),
    ({"features": "dropout", "causal": False, "world": 3, "chunk": 8}, WAYS),
    ({"documents": DOCUMENTS, "chunk": 18, "world": 4}, ALL),
    ({"documents": DOCUMENTS, "chunk": 72, "shards": "ranges", "causal": False, "features": "lse"}, WAYS),
    ({"documents": DOCUMENTS, "chunk": 24, "world": 3, "features": "alibi_bh+sinks", "window": (20, -1)}, WAYS),
    ({"documents": DOCUMENTS, "chunk": 24, "world": 3, "features": "snippet"}, WAYS),
]


def cases():
    """Each feature in one way, and the others in the wide set; the first ones in all ways."""
    for number, (more, ways) in enumerate(FEATURES):
        for place, how in enumerate(ways):
            case = sized(Case(how, **{**more, **({"world": 4} if "+" in how else {})}))
            chosen = number < 2 or place == number % len(ways)
            yield pytest.param(case, id=str(case), marks=() if chosen else pytest.mark.wide)
    yield pytest.param(DROPS_DOCUMENTS, id=str(DROPS_DOCUMENTS))


def sized(case):
    """Documents of all tokens, whatever the number of ranks."""
    if case.documents and sum(case.documents) != case.rows:
        return replace(case, documents=(*case.documents, case.rows - sum(case.documents)))
    return case


DROPS_DOCUMENTS = Case("all_to_all", documents=DOCUMENTS, chunk=24, world=3, features="dropout")


@pytest.mark.parametrize("case", cases())
def test_matches_one_process(case):
    attending.judge(case, ranks.run(attending.attend, case, world=case.world))
