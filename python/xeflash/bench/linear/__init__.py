"""The benchmark of `xeflash.linear` behind `xeflash bench linear`.

`cases` says which layers are measured, `weights` quantises them, `forms` computes them by xeflash and by torch, `rows`
is the result and its tables, `run` puts these together, `plot` draws it.
"""
