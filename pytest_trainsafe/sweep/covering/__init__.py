"""Covering designs: few Points of a sweep that contain every valid pair (triple) of axis values.

design   the algorithm, on rows of numbers
cells    chooses a test's Points with this algorithm, for the option --trainsafe-cover
"""
