"""Which APIs exist, which are observed, and how functions are exchanged for wrappers.

- `catalogue.py`: the APIs of PyTorch, and what a call of each may change.
- `libraries.py`: functions, classes and libraries beyond these, by name.
- `selection.py`: the APIs and variables that an observation asks for.
- `patches.py`: exchanges functions and puts them back.
"""
