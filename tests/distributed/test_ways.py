"""Every way over ranks against one process in float64, forward and backward, with each feature."""

import attending
import pytest
import ranks
from attending import over

WAYS = ("ring", "all_gather", "all_to_all")
ALL = (*WAYS, "ring+all_to_all", "all_gather+all_to_all")
DOCUMENTS = (30, 0, 1, 100, 13)  # 144 tokens

FEATURES = [
    ({}, ALL),
    ({"window": "full"}, ALL),
    ({"shards": "ranges", "chunk": 40}, ALL),
    ({"dtype": "bf16", "dlse": True}, ALL),
    ({"dtype": "fp16", "sinks": True, "heads": (8, 4)}, ALL),
    ({"window": "30,causal", "shards": "ranges", "chunk": 32, "world": 4}, WAYS),
    ({"window": "9,5", "world": 3}, WAYS),
    ({"window": "40,causal", "world": 3, "chunk": 16}, WAYS),
    ({"window": "-1,20", "shards": "ranges", "chunk": 32, "world": 3}, WAYS),
    ({"variant": "softcap", "sinks": True, "dlse": True, "world": 3, "scale": -0.2}, WAYS),
    ({"variant": "alibi", "world": 4}, (*WAYS, "ring+all_to_all")),
    ({"variant": "alibi", "slopes": "bh", "sinks": True, "window": "full", "world": 3}, WAYS),
    ({"variant": "slope", "world": 2}, (*WAYS, "all_gather+all_to_all")),
    ({"variant": "dropout", "world": 2}, (*WAYS, "ring+all_to_all")),
    ({"variant": "dropout", "window": "full", "world": 3, "chunk": 8}, WAYS),
    ({"rows": DOCUMENTS, "chunk": 18, "world": 4}, ALL),
    ({"rows": DOCUMENTS, "chunk": 72, "shards": "ranges", "window": "full", "dlse": True}, WAYS),
    (
        {
            "rows": DOCUMENTS,
            "chunk": 24,
            "world": 3,
            "variant": "alibi",
            "slopes": "bh",
            "sinks": True,
            "window": "20,causal",
        },
        WAYS,
    ),
    ({"rows": DOCUMENTS, "chunk": 24, "world": 3, "variant": "slope"}, WAYS),
]


def cases():
    """Each feature in one way, and the others in the wide set; the first ones in all ways."""
    for number, (more, ways) in enumerate(FEATURES):
        for place, how in enumerate(ways):
            case = over(how, **{**more, **({"world": 4} if "+" in how else {})})
            chosen = number < 2 or (place == number % len(ways) and more.get("variant") != "softcap")
            yield pytest.param(case, id=str(case), marks=() if chosen else pytest.mark.wide)
    yield pytest.param(DROPS_DOCUMENTS, id=str(DROPS_DOCUMENTS))


DROPS_DOCUMENTS = over("all_to_all", rows=DOCUMENTS, chunk=24, world=3, variant="dropout")


@pytest.mark.parametrize("case", cases())
def test_matches_one_process(case):
    attending.judge(case, ranks.run(attending.attend, case, world=case.world))
