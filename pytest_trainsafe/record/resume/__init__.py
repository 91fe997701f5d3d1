"""Runs that save a checkpoint, or go on from one, for `assert_resumable`.

checkpoints   the blocks `ctx.save` and `ctx.load`: which folder a program saves into or loads from
objects       finds the schedulers, gradient scalers and samplers that a program makes
state         reads the state of the training that no tensor of the trace has
rng_state     the states of all generators of a rank, to be saved beside a program's own state
save          a whole checkpoint, through torch.distributed.checkpoint
"""
