"""Random numbers that depend on the example, and not on the rank or worker that computes it.

`keys` makes a key for each example (a hash of the seed, the stream, the epoch and the example's
index), and generators seeded with it. `dropout` makes masks from keys,
and `dataset` augments an example in the same way in every worker. Training programs call these
functions, also when nothing is recorded.
"""
