"""Errors in the inputs or the outputs of a model: one program a file."""
