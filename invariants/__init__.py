"""Learned invariant packs live here, each with how it was learned.  None is shipped yet."""
