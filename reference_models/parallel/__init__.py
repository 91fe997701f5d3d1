"""The same models over many ranks: tensor, sequence, context, expert, pipeline and data parallel.

Start with `apply.py`, which swaps modules of the single-device model for parallel ones.

    axes  collectives  regions     where a rank stands; communication, and its derivatives
    linear  embedding  norm  loss  tensor and sequence parallel
    zigzag  attention              context parallel
    stages  schedules  pipeline    pipeline parallel: what a rank has of a model, and when it runs
    tied                           embeddings shared by the first and the last stage
    buckets  reduction  zero       data parallel, overlapped, and the optimizer shared out
    expert_axes  routing  experts  apply_moe    expert parallel
    gradients                      what is left to reduce after the backward
"""
