"""Runs that save a checkpoint, or continue from one, for `assert_resumable`.

checkpoints  implements `ctx.save` and `ctx.load`: the folder that a program saves to or loads from
objects      finds the schedulers, gradient scalers and samplers that a program creates
state        reads the state of the training that is not in any tensor of the trace
save         `TrainingCheckpoint`: a complete checkpoint, through torch.distributed.checkpoint
"""
