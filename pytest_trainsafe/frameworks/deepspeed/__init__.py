"""DeepSpeed: reads parameters, gradients and states from its engine and optimizers."""
