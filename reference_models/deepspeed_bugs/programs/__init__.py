"""The programs in which the bugs of the catalogue act.

small               most bugs; `network` is its model, `recipe` its settings
tensor_parallel     the bug that BLOOM-176B was trained with
stuck               bugs that stop a training; `stopping` has the trainings
small_training  tensor_parallel_training    what the programs run in the ranks
"""
