"""Shares a machine among groups: leases, file locks, GPUs, private networks, temporary folders."""
