"""Operators by elements: arithmetic, what the order of numbers decides, activation functions."""
