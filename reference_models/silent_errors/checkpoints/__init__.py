"""Errors of what saves a model, or takes it over to save it: one program a file."""
