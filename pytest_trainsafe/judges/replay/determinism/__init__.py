"""Judges whether the same Run gives the same results twice.

judge          requests the repetitions of the Run, which `variation` varies, and compares them
divergence     finds the first result that differs
operator_look  finds the first operator whose result differs
cause          names the likely cause, with `further_runs`; `reads` describes calls of the clock and
               the like, and `nondeterministic` has the operators that torch documents
"""
