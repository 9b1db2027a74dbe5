"""The benchmark of language models behind `xeflash bench decode`, `xeflash bench generate` and `xeflash bench train`.

`presets` and `models` build them with random weights, `cells` says what is run, `generation` runs one call of generate
with a stopwatch, `linears` has linear layers computed by xeflash, `instruments` finds where the time goes and what the
cache copies, `check` that all implementations agree, `counts` runs the attention on a simulated GPU, `run` puts these
together, `rows`, `columns` and `plot` write the result. `training` makes and checks training steps, `training_rows`
says of what, and writes the result.
"""
