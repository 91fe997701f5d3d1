"""Changes to a running program: noise of the size of rounding, and rewritten values."""
