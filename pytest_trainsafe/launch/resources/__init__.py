"""Shares a machine among groups: leases, locks, GPUs, private networks, folders and sockets."""
