"""Compares Runs that must train the same by definition.  Called by `assert_same_by`.

judge      asks for the Runs, compares them with the compare judge, and checks that they differ
change     applies a relation's change to a RunSpec, and raises errors for changes that do not fit
varied     the Traces of the two Runs, as the ladder takes them
translate  turns a trace's tensors into those of the other Run, so that they can be compared
kept       the file of relations that were found on healthy Runs
find       tries relations on healthy Runs, or asserts those that the file keeps
"""
