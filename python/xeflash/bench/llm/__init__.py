"""The benchmark of language models behind `xeflash bench decode` and `xeflash bench generate`.

`presets` and `models` build them with random weights, `cells` says what is run, `generation` runs one call of generate
with a stopwatch, `instruments` finds where its time goes and what its cache copies, `check` that all implementations
agree, `counts` runs the attention on a simulated GPU, `run` puts these together, `rows`, `columns` and `plot` write the
result.
"""
