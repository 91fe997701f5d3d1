"""Starts a group below a guard, waits for its ranks, and ends it whatever happens."""
