"""Packs of learned invariants, each with a note on how it was learned.  There are none yet."""
