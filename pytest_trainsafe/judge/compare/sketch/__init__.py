"""Judges tensors by random projections, where their values were not kept."""
