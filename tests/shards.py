"""Which part of a set a run is of, as its command says it: K/N."""

WIDE_PARTS = 32  # of the wide set, each of which takes some 10 minutes of two cores; .ci/run reads this, too


def parse(text: str) -> tuple[int, int]:
    """The number and how many there are; ValueError names what is wrong."""
    number, slash, shards = text.partition("/")
    if not (slash and number.isdecimal() and shards.isdecimal() and 1 <= int(number) <= int(shards)):
        raise ValueError(f"--shard must be K/N with 1 <= K <= N, got {text!r}")
    return int(number), int(shards)
