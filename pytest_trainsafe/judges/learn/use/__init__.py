"""Uses packs in a test suite.

deploy      loads packs by name, and says what must be observed to check them, and in which Run
judged      judges the trace of an observed Run, or an observation, by packs
asserted    judges what is passed to `assert_invariants`
from_tests  learns a pack from the healthy tests of a pytest run
general     chooses the invariants that hold for programs in general
"""
