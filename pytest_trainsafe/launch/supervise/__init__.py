"""Supervises a group: starts it below a guard, waits for its ranks, ends all of its processes."""
