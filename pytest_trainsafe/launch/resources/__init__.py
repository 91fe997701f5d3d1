"""What groups share a machine by: leases of ranks, GPUs, private networks, temporary folders."""
