"""Watchers of the steps of optimizers, and of what a backward begins with."""
