"""torch's own wrappers and schedules: DDP, FSDP2, pipelining."""
