"""The RNG ledger of one rank: which generator was advanced, from which state, by what, and when.

`ledger` is what the recorder owns.  `operators` intercepts torch's random operators, `functions`
those of Python's `random` and of NumPy, `workers` the fetches of data loaders' workers.  `states`
reads generators, and `frames` says which module and line of the program led to a draw.
"""
