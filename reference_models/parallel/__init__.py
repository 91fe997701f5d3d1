"""The same models over many ranks: tensor, sequence, context and data parallel.

Start with `apply.py`, which swaps modules of the single-device model for parallel ones.

    axes  collectives  regions     where a rank stands; communication, and its derivatives
    linear  embedding  norm  loss  tensor and sequence parallel
    zigzag  attention              context parallel
    gradients                      what is left to reduce after the backward
"""
