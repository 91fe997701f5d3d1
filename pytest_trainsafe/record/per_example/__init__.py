"""Random numbers that belong to an example, and not to the rank or worker that computes it.

`keys` makes one key for each example, and generators of it.  `dropout` makes masks of keys, and
`dataset` augments examples alike in every worker.  Training programs call these; nothing here
needs a recorder.
"""
