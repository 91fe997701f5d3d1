"""Judges whether a training that is resumed from a checkpoint continues as if never interrupted.

arguments   checks the arguments of `assert_resumable`
judge       requests the Runs and compares them
continued   finds the first result of the resumed Run that differs
causes      decides which differences are causes, and which only follow from others
state       finds the state that the checkpoint did not restore
streams     finds random streams that continue at a different position, and the draws in between
data        finds the inputs that the resumed Run reads instead of the uninterrupted Run's
later       finds values that the resumed Run computes otherwise in a later step
beside      finds weights beside the watched model that were not restored
difference  one difference, and its Finding
layout      judges a checkpoint that is resumed at another Point
loaded      compares the state that both Points loaded
"""
