"""Judges turn the Runs of a test into Findings; each has a wing of its own.

contract    the interface of a judge and of its result
registry    the built-in judges and those that a project registers
arguments   checks the arguments of assertions
loosen      tolerances that a test multiplies, with its reason
one_thread  limits torch to one thread
alone       asks one judge about the Runs of a fixture
joint       combines the judgements of a test into one verdict
joint_text  the report of a test with several judges
first_line  the line that pytest's short summary shows; `first_of` has its data
own_text    the sentences of a judge

compare     compares candidate and reference up to rounding, and finds the faulty code
exact       proves that both compute the same function, on numbers without rounding
learn       checks rules that were learned from healthy runs
replay      judges random numbers, determinism, resume, and replays Runs from checkpoints
metamorphic compares a program with itself
refine      proves that the graphs of all ranks compute a sequential graph
"""
