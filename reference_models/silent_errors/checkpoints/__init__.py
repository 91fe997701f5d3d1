"""Errors in saving a model, or in the engine that trains and saves it: one program a file."""
