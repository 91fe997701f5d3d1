"""Hooks on modules that record what they compute, and the lines of the program that run them."""
