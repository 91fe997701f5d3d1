"""Covering designs: few Points of a sweep that contain every valid pair (triple) of axis values.

design   the algorithm, on rows of numbers
cells    applied to the Cells of a test
"""
