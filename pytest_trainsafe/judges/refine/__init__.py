"""Proves that the graphs of all ranks compute what a sequential graph computes.

No process and no training: graphs come from files or from captures, and are evaluated on exact
numbers (`pytest_trainsafe.arithmetic`).

    mesh          the ranks and their groups
    graphs/       the one form of a graph, and what reads it from text
    relations/    how a sequential tensor is made of the ranks' tensors
    problem/      what is asked: graphs, relations of inputs, and those that results must have
    evaluate/     both sides on exact numbers, all ranks in lockstep
    search/       finds relations, and the first operator without one
    sizes/        shrinks shapes that are too large to be evaluated
    layouts       how the ranks hold each tensor, by rules that decide nothing
    prove         the verdict: a Proof or a Refutation
    solver/       a second engine, z3, which proves the stages of a proof again
    certificate/  what was proved, as a file, and its checker
    judge         the verdict as a certificate or a Finding; text has its sentences
    command       the command line
"""
