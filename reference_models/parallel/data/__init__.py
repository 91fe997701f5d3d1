"""Data parallelism: gradients reduced over dp, and the update.

buckets  reduction      gradients averaged in buckets during the backward
gradients               what is left to reduce after the backward, and the gradient norm
zero                    ZeRO-1: the optimizer's state cut over dp and cp
update                  clipping and the optimizer's step
"""
