"""The tests, whose modules are imported as `tests.…` from the folder above, by ranks too.

A regular package, so that no package `tests` elsewhere on the path is imported instead.
"""
