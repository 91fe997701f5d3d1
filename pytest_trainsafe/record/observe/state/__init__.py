"""The state of training objects: what is followed, and how a change is noticed.

- `variables.py`: finds objects, names them, and compares them.
- `slots.py`: one followed attribute.
- `plain.py`: the attributes of optimizers, schedulers, scalers, loaders and samplers.
"""
