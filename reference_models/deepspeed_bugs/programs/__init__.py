"""The programs in which the bugs of the catalogue act.

small               the program for most bugs; `network` is its model, `recipe` its settings
tensor_parallel     the program for the bug with which BLOOM-176B was trained
stuck               the program for bugs that stop a training; `stopping` has the trainings
small_training  tensor_parallel_training    the code that the programs run in the ranks
"""
