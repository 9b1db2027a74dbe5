"""The last step before a call reaches the extension."""

from __future__ import annotations

from xeflash.call.call import Call
from xeflash.call.values import is_on, seeds, snippets

SNIPPETS = frozenset({"score_mod", "mask_mod", "captures"})


def ready(call: Call) -> Call:
    """Returns a call with dropout's random numbers, and with its snippets in the extension's form."""
    given = call.arguments
    if "dropout_p" in given and "seed" not in given and is_on(given["function"], "dropout_p", given["dropout_p"]):
        call = seeded(call)
    return call if SNIPPETS.isdisjoint(given) else with_snippets(call)


def with_snippets(call: Call) -> Call:
    """Returns a call with its snippets in the extension's form, each with the captures that it names."""
    given = call.arguments
    score_mod, mask_mod = snippets(call.function, *(given.get(x) for x in ("score_mod", "mask_mod", "captures")))
    call = call.with_("captures", "mask_mod", score_mod=score_mod)
    return call if mask_mod is None else call.with_(mask_mod=mask_mod)


def seeded(call: Call) -> Call:
    """Returns a call with dropout's random numbers."""
    seed, offset = seeds(call.function, call["q"])
    return call.with_(seed=seed, offset=offset)
