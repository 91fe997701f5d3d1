"""Invariants from observed runs.

learn   hypotheses, examples, preconditions, choice
deduce  the precondition of a hypothesis
select  what counts as evidence, what is implied, and how confident an invariant is
jobs    processes and progress; kept: results on disk
"""
