"""Data parallelism: gradients reduced over dp, and the update.

buckets  reduction      gradients averaged in buckets during the backward
gradients               reductions after the backward, and the gradient norm
zero                    ZeRO-1: the optimizer's state sharded over dp and cp
update                  reduction, clipping and the optimizer's step
"""
