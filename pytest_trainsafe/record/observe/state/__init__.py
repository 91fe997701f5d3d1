"""Notices changes in the state of training objects.  "To follow" an object means to record them.

- `variables.py`: finds objects, names them, and compares their attributes with earlier values.
- `slots.py`: reads one followed attribute.
- `plain.py`: lists the attributes of optimizers, schedulers, scalers, loaders and samplers.
"""
