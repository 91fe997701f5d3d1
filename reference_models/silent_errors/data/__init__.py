"""Errors in what reaches the model or leaves it: one program a file."""
