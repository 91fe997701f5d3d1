"""The same models over many ranks: tensor, sequence, context, expert, pipeline and data parallel.

Start with `apply.py`, which replaces modules of the single-device model by parallel ones.

    axes  techniques        where a rank stands; how a model is trained
    collectives  regions    communication, and its derivatives
    marks                   attributes of parameters that tell the recorder their layout
    tensor/  context/       tensor and sequence parallel; context parallel
    pipeline/               pipeline parallel: what a rank has of a model, and when it runs
    data/                   data parallel, overlapped, and the optimizer's state sharded
    experts/                expert parallel
    recompute               activation recomputation
    fp8  scaling            FP8 linear layers, and their scales over ranks
"""
