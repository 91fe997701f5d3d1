"""The RNG ledger of one rank: which generator advanced, from which state, by what, and when.

`ledger` is owned by the recorder. `operators` intercepts torch's random operators, `functions`
those of Python's `random` and of NumPy, `workers` the fetches of data loaders' workers. `states`
reads generators, and `frames` finds the module and the line of the program that made a draw.
"""
