"""Operators of layers: losses, norms, convolution, pooling, embedding bags, attention."""
