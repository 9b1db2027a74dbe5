"""Errors that are two of Python's, where programs look for one of them and our rule for values is the other."""


class CacheOverflowError(ValueError, RuntimeError):
    """A sequence that is longer than its part of a cache; flash-attn's is a RuntimeError."""
