"""Checks runs for violations of packs.

verifier     a listener that checks while events happen
offline      checks recorded runs, all ranks together
cluster      violations by cause
applicable   what was not checked, and why
findings     violations as Findings
"""
