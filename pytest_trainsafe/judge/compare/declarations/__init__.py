"""Detects missing and wrong annotations of layouts and means, and proposes corrections."""
