"""Determines how large an error rounding can explain; rounding is measured on the reference."""
