"""The search for a device's best sizes: what `xeflash tune` does.

`cases` says which calls decide, `workers` runs them in processes, `rounds` judges times, `counts` machine code, and
`search` goes through the rows.
"""

PHASES = ("prefill", "decode", "verify", "train")  # in the order of their use; verify: few queries of a sequence
HEAD_DIMS = (128, 64, 256)
