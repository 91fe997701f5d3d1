"""Supervises a group: starts it below a reaper, waits for its ranks, ends all of its processes."""
