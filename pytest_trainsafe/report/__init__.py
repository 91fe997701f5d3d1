"""Lays out reports as plain text; the wings of the judges have the sentences.

rows         labelled rows of at most 100 columns
rerun        the command that runs a test again
fuzz         the reports of fuzz tests
interaction  the axes that a failure of a fuzz test needs
run          the reports on a whole pytest run
"""
