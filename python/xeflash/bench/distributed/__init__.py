"""The benchmark of context parallel: `rows` are the cases and the result, and `run` measures them on all ranks.

`ranks` makes a process a rank, and `launch` starts the ranks on this machine.
"""
