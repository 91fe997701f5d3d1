"""The RNG ledger of one rank: which generator advanced, from which state, by what, and when.

The recorder owns the ledger (`ledger`; `no_ledger` where none is kept). `operators` intercepts
torch's random operators, `functions` the functions of Python's `random` and of NumPy, and `workers`
the fetches of data loaders' workers. `frames` finds the module and the line of the program that
made a draw.
"""
