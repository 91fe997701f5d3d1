"""Compares one logical tensor with its reference.

values     loads the logical tensors of a trace and caches them
errors     measures the difference of two tensors
allowance  how large an error the measured responses to rounding allow
tensor     judges the difference by its allowance
sketches   the sketches of the tensors of which only random projections were recorded
screen     judges sketches
"""
