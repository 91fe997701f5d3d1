"""Judges whether the same Run gives the same results twice.

judge          requests the repetitions and compares them; `variation` varies them
divergence     finds the first result that differs
operator_look  finds the operator that computes it
cause          names the likely cause; `nondeterministic` has torch's own list
"""
