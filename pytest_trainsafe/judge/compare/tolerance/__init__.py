"""Determines how large an error rounding explains, measured on the reference."""
