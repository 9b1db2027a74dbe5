"""The calls of a report by name, for a process that does not load the extension."""

from __future__ import annotations

from xeflash.bench.cases import PRESETS, Case, expand

LAUNCH = Case("decode", "bf16", 1, 1, 1, 64, 1, 16, causal=False)  # next to no work
_PUBLISHED = [case for phase, grids in PRESETS["card"].items() for grid in grids for case in expand(phase, grid)]
CASES = {case.label: case for case in (*_PUBLISHED, LAUNCH)}
