"""Random numbers that belong to an example, whichever rank or worker computes it.

`keys` makes a key for each example, and generators seeded with it. `dropout` makes masks from keys,
and `dataset` augments an example in the same way in every worker. Training programs call these;
nothing here needs a recorder.
"""
