"""Judges the real training step on numbers without rounding, so that equal means equal.

It is a rung of the precision ladder, `exact`, above float64: the numbers and the semantics of
operators are those of `arithmetic`.

instrument  what happens in the ranks
events      the decisions of a rank, and the operators that it met
"""
