"""torch's own data parallel wrappers: DDP, `replicate`, FSDP2."""
