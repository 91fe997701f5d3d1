"""The programs that show the bugs of the DeepSpeed catalogue.

small                      the program for most bugs: trains a small network
small_training             the training code of `small`, which runs in the ranks
network, recipe            the network that `small` trains, and the settings of the training
tensor_parallel            the program for the bug with which BLOOM-176B was trained
tensor_parallel_training   the training code of `tensor_parallel`, which runs in the ranks
stuck                      the program for bugs that make a training hang or crash
stopping                   the trainings that these bugs make hang or crash, which run in the ranks
"""
