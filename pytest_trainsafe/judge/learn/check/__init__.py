"""Checks runs for violations of packs.

verifier     a listener that checks while events happen
offline      checks recorded runs, all ranks together
cluster      violations by cause
checker      what the checkers of relations share
applicable   what was not checked, and why
findings     violations as Findings
"""
