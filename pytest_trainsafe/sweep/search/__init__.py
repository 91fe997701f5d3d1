"""Searches a space of Points: which are valid, which is the smallest that fails, and why it does.

space         the valid Points of a program over some axes, and moves between them
values        the values of an axis that a test leaves to the plugin (`...`)
minimise      the smallest failing Point, and what each axis does to the failure
interaction   the result, as data
"""
