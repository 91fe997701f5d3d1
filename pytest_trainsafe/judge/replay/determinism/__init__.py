"""Judges whether the same Run gives the same results twice.

judge             asks for the repeats and compares them; `variation` says how repeats differ
divergence        finds the first result that differs
operator_look     finds the operator that makes it
cause             names the likely cause; `nondeterministic` has torch's own list
"""
