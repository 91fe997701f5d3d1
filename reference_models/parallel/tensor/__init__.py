"""Tensor and sequence parallelism: modules that are split over tp.

linear                      linear layers, split by columns or by rows
embedding  loss             the embedding and the loss, split over the vocabulary
norm                        norms with sequence parallelism
overlap                     a linear layer whose backward communicates while it computes
"""
