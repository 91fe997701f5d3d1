"""Detects checks that could not have failed, and lists what was not compared."""
