"""Proves that the graphs of all ranks compute what a sequential graph computes.

No process and no training: graphs come from files or from captures, and are evaluated on exact
numbers (`pytest_trainsafe.arithmetic`).

    graphs/     the one form of a graph, and what reads it from text
"""
