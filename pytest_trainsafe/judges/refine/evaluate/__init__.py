"""Evaluates graphs on exact numbers, by the table of semantics of `pytest_trainsafe.arithmetic`.

mesh         the ranks' coordinates, and the ranks of each process group
operators    the result of one node
kernels      semantics of fused kernels outside of torch, and of dropout
constants    values of constants that a graph's text does not hold
collectives  what each rank of a group gets
marks        the integers that decide something, which are drawn too
memory       what operators read that others wrote after it was made
lockstep     all ranks' graphs, a rank at a time, up to the next collective
"""
