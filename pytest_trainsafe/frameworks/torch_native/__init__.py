"""Finds torch's data parallel wrappers (DDP, `replicate`, FSDP2) and how they average gradients."""
