"""Measurements behind `xeflash bench`.

Cases become rows: `cases`, `forms` and `check` are those of `attention`; `linear`, `matmul_softmax` and `lm_head` are
benchmarks of one call, too. `runner` runs these four; `llm` runs whole models, and `distributed` runs ranks. All have
`rows` and `tables` in common, `formats` and `screen` write them, and `plot` draws them. `timing`, `memory`, `peak`,
`reading`, `limits` and `shares` are the instruments, and `environ` tells what they ran on.
"""
