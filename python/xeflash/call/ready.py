"""The last of a call before the extension has it."""

from __future__ import annotations

from xeflash.call.call import Call
from xeflash.call.values import is_on, seeds, snippet


def ready(call: Call) -> Call:
    """With the numbers that dropout draws, and what its snippet captures, as the extension takes them."""
    given = call.arguments
    if "dropout_p" in given and "seed" not in given and is_on(given["function"], "dropout_p", given["dropout_p"]):
        call = seeded(call)
    if "score_mod" in given or "captures" in given:
        found = snippet(call.function, call.get("score_mod"), call.get("captures"))
        call = call.with_("captures", score_mod=found)
    return call


def seeded(call: Call) -> Call:
    """With the numbers that dropout draws."""
    seed, offset = seeds(call.function, call["q"])
    return call.with_(seed=seed, offset=offset)
