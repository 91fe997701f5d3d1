"""Judges tensors by random projections if their values were not recorded."""
