"""How groups share a machine: leases of ranks, GPUs, private networks, temporary folders."""
