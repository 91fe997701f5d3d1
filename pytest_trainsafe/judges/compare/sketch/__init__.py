"""Judges tensors by sketches (random projections) if their values were not recorded."""
