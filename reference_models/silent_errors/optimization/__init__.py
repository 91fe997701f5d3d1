"""Errors in how a training loop optimizes a model: one program a file."""
