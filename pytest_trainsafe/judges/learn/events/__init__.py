"""Records of the API calls and the changes of state that a process observed.

- `events.py`: a call, a change of state, and the values in them.
- `table.py`: calls and changes as columns, and the listener that fills them.
- `file.py`: writes and reads a table as a file.
- `check.py`: checks a table from a file.
- `setup_text.py`: how a parameter is trained, as a value in the table.
- `slips.py`: the slips that are watched for, and how one is recorded.
- `mode_text.py`: in which modes models ran, as a value in the table.
"""
