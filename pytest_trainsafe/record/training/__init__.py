"""Records a training step: gradients, clipping, the optimizer and its state."""
