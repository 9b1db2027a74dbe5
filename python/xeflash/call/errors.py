"""Errors that belong to two of Python's classes: the one that programs catch, and the one of our rules."""


class CacheOverflowError(ValueError, RuntimeError):
    """A sequence is longer than its part of a cache; flash-attn raises a RuntimeError there."""
