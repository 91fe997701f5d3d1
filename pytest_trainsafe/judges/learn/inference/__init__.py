"""Learns invariants from observed runs.

learn         learns the invariants of all relations
one_relation  learns those of one
deduce        finds the precondition of a hypothesis
select        chooses the hypotheses that become invariants, and computes their confidence
jobs          distributes relations over processes and reports progress
kept          keeps results on disk
"""
