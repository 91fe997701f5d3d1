"""Judges turn the traces of Runs into Findings; the ladder asks them, dtype by dtype."""
