"""The last step before a call reaches the extension."""

from __future__ import annotations

from xeflash.call.call import Call
from xeflash.call.values import is_on, seeds, snippet


def ready(call: Call) -> Call:
    """Returns a call with dropout's random numbers, and with its snippet in the extension's form."""
    given = call.arguments
    if "dropout_p" in given and "seed" not in given and is_on(given["function"], "dropout_p", given["dropout_p"]):
        call = seeded(call)
    if "score_mod" in given or "captures" in given:
        found = snippet(call.function, call.get("score_mod"), call.get("captures"))
        call = call.with_("captures", score_mod=found)
    return call


def seeded(call: Call) -> Call:
    """Returns a call with dropout's random numbers."""
    seed, offset = seeds(call.function, call["q"])
    return call.with_(seed=seed, offset=offset)
