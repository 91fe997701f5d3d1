"""The current activity of Runs: written by the session, shown by the terminal.

board   the Runs of this process
shared  the Runs of the workers of pytest-xdist, in files that their controller reads
"""
