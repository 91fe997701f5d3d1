"""Watchers of objects when training begins: weights and settings of optimizers."""
