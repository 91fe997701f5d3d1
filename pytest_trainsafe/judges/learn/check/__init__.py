"""Checks runs for violations of the invariants in packs.

verifier     checks the events of one process as they happen
offline      checks recorded runs, all ranks together
cluster      groups violations by cause
checker      the base class of the checkers of relations
applicable   lists what was not checked, and why
findings     turns violations into Findings
"""
