"""Checkpoints from which a training continues with the random numbers it would have drawn.

`checkpoint` has ReplayCheckpoint, which programs use; `regenerate` has `fast_forward`, and `plan`
has `replay_plan`, which analyses what `operations` records. `generators` reads and restores random
number generators, and `tree` converts the states of samplers and loaders to plain data.
`checks` validates the file of one rank (`events/file.py`) before it is loaded. `first_step`
compares the draws of the first step after a restart with those of the original. `run` connects
these to the Run that is being recorded, if there is one.
"""
