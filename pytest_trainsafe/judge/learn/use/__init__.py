"""Packs in a test suite.

deploy      packs by name, and what must be observed to check them
asserted    what `assert_invariants` is given
from_tests  a pack from the healthy tests of a pytest run
"""
