"""Healthy programs that train on texts or token sequences: one program a file."""
