"""Runs that save a checkpoint, or continue from one, for `assert_resumable`.

checkpoints  implements `ctx.save` and `ctx.load`: decides when, and into or from which folder
objects      finds the schedulers, gradient scalers and samplers that a program creates
state        records the state of the training that is not in any tensor of the trace
save         `TrainingCheckpoint`: a complete checkpoint, through torch.distributed.checkpoint
"""
