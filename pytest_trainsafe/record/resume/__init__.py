"""Runs that save a checkpoint, or go on from one, for `assert_resumable`.

checkpoints   the blocks `ctx.save` and `ctx.load`: which folder a program saves into or loads from
objects       finds the schedulers, gradient scalers and samplers that a program makes
state         reads the state of the training that no tensor of the trace has
save          `TrainingCheckpoint`: a whole checkpoint, through torch.distributed.checkpoint
"""
