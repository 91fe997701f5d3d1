"""Layouts and means that nobody declared, or declared wrongly: found, and proposed."""
