"""Reads parameters, gradients and optimizer states from DeepSpeed's engine and optimizers."""
