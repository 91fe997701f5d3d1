"""`python -m pytest_trainsafe learn`: learns from plain scripts, and checks them.

- `main.py`: the command line.
- `collect.py`: runs a script, and keeps what its ranks did.
"""
