"""The benchmark of context parallel: what was measured on ranks (``run``), and a model of time for many devices.

``model`` and ``model_rows`` are arithmetic on stated inputs; no line of them was measured.
"""
