"""The same models over many ranks: tensor, sequence, context, expert, pipeline and data parallel.

Start with `apply.py`, which replaces modules of the single-device model by parallel ones.

    axes  techniques        this rank's position on the axes; how a model is trained
    collectives  regions    collectives without and with derivatives
    marks                   attributes of parameters that tell the recorder their layout
    tensor/  context/       tensor and sequence parallelism; context parallelism
    pipeline/               pipeline parallelism: the stages of a rank, and their schedule
    data/                   data parallelism, overlapped reductions, sharded optimizer state
    experts/                expert parallelism
    recompute               activation recomputation
    fp8  scaling            FP8 linear layers, and their scales over ranks
"""
