"""What is recorded of a training step: gradients, clipping, the optimizer, its state."""
