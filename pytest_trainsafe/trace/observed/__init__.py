"""What a process observed of API calls and of the state of training objects.

- `events.py`: a call, a change of state, and the values they carry.
- `table.py`: the same as columns, and the listener that fills them.
"""
