"""How groups share a machine: leases, file locks, GPUs, private networks, temporary folders."""
