"""The public functions: a signature and a docstring each, and the way of a call from there."""
