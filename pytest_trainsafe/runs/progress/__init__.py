"""What Runs are doing at the moment: written by the session, shown in the terminal.

board     the Runs of this process
shared    the Runs of the workers of pytest-xdist, in files that their controller reads
terminal  what ranks print while they run, and the terminal for a debugger in one of them
"""
