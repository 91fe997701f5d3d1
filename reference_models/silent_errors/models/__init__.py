"""Errors in what a model computes, or in how it is built: one program a file."""
