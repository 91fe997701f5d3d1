"""Trainings whose failures are hard to find again, each replayed from a checkpoint.

They follow the motivating example and the case studies of DETrain (Xu et al., CAIN 2022) on data
that a CPU trains on in seconds: `pgd` is adversarial training with every kind of random number;
`fgsm` differs from run to run; `accuracy_drop` loses its accuracy in one step; and `nan_loss` ends
in the logarithm of zero.  `checkpoints` saves and restores the state that all of them have.
"""
