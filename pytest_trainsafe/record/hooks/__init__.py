"""Hooks that record the values that a model's modules compute."""
