"""Notices changes in the state of training objects.

An object is followed if its changes are recorded.

- `variables.py`: finds objects, names them, and compares their attributes with earlier values.
- `slots.py`: reads one followed attribute.
- `plain.py`: lists the attributes of optimizers, schedulers, scalers, loaders and samplers.
"""
