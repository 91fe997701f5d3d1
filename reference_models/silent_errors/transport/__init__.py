"""Errors of the connection between two devices, which loses data: one program a file."""
