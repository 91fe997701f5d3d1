"""Compares Runs that must train the same by definition.  Called by `assert_same_by`.

judge      asks for the Runs, compares them with the compare judge, and checks that they differ
change     applies a relation's change to a RunSpec, and the errors for what it cannot change
varied     the Traces of the two Runs, as the ladder takes them
translate  a trace in the terms of the other Run
kept       the file of relations that were found on healthy Runs
find       tries relations on healthy Runs, or asserts those that the file keeps
"""
