"""Healthy programs whose parameters are fully sharded (`fully_shard`): one program a file."""
