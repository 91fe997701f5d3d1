"""Judges whether a training that is resumed from a checkpoint continues as if never interrupted.

judge      requests the Runs and compares them
continued  finds the first result of the resumed Run that differs
state      finds the state that the checkpoint did not restore
streams    finds random streams that continue at a different position, and the draws in between
data       finds the batches that the resumed Run reads instead of the uninterrupted Run's batches
layout     judges a checkpoint that is resumed at another Point
loaded     compares the state that both Points loaded
"""
