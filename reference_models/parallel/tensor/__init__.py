"""Tensor and sequence parallelism: modules cut over tp.

linear  embedding  loss     cut by columns, by rows, over the vocabulary
norm                        norms under sequence parallelism
overlap                     a linear layer whose backward communicates while it computes
"""
