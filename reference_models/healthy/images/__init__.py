"""Healthy programs that train convolutional networks: one program a file."""
