"""What Runs are doing at the moment: the session writes it, and the terminal shows it.

board   the Runs of this process
shared  the Runs of the workers of pytest-xdist, in files that their controller reads
"""
