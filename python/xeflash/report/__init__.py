"""`xeflash report`: all that others want to know of a device, in one file.

`worker` is a process that runs cases, and `card` checks and times those of `cases`, whose speed others have published.
`journal` is what remains if a kernel hangs and the machine stops; `judged` says what may not be believed, and `private`
leaves out names and paths.
"""
