"""Checkpoints from which a training program continues with the numbers it would have drawn.

`checkpoint` has ReplayCheckpoint, which programs use; `regenerate` has `fast_forward`, and `plan`
has `replay_plan`, on what `operations` records.
`generators` reads and restores random number generators, and `tree` makes plain data of the states
of samplers and loaders.  `file` writes and reads the file of one rank; `checks` says whether a
program can load it.  `first_step` compares the draws of the first step after a restart with those
of the original.  `run` connects all of it to the Run that is being recorded, if there is one.
"""
