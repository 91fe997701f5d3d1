"""Operators of layers: losses, norms, convolution, pooling, attention."""
