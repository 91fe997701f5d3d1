"""Detects missing and wrong annotations of layouts and of averages, and proposes corrections."""
