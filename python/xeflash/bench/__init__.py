"""The benchmark behind `xeflash bench`: cases, timing, check, table. The only timer of the project.

`cases` says what is measured, `forms` how torch and we compute it, `check` that both are right,
`timing` takes the samples, `run` puts these together, `formats` and `plot` write the result.
"""
