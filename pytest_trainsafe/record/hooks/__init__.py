"""Hooks that record the values that a model's modules compute.

They also record the program's source lines that call the model, and those that define its modules.
"""
