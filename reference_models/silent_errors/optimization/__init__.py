"""Errors that keep an optimizer from doing what the loop asks of it: one program a file."""
