"""What a Run puts into a program: noise of the size of rounding, and rewritten values."""
