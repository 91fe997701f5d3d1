"""Finds the APIs to observe, and exchanges their functions for wrappers.

- `catalogue.py`: lists the observed APIs of PyTorch, and what a call of each may change.
- `libraries.py`: finds other functions, classes and libraries by name.
- `selection.py`: selects the APIs and variables that an observation asks for.
- `patches.py`: exchanges functions and restores them.
"""
