"""DeepSpeed: what its engine and its optimizers hold of a model."""
