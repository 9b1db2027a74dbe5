"""The benchmark of language models behind `xeflash bench decode`, `xeflash bench generate` and `xeflash bench train`.

`presets` and `models` build them with random weights, `cells` says what is run, and `rows` has the results and tables.
`run` has all ways to compute a model take turns: `decode` generates tokens, `training` makes steps. `generation` runs
one call of generate with a stopwatch, `linears` computes linear layers by xeflash, `instruments` finds where the time
goes and what the cache copies, `check` tests that all ways agree, and `plot` draws the result.
"""
