"""The benchmark of `xeflash.linear` behind `xeflash bench linear`.

`cases` says which layers are measured, `weights` quantises them, `forms` computes them by xeflash and by torch, and
`benchmark` is the rows, the check and the problem of a case.
"""
