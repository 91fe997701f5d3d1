"""Attributes that Megatron-LM leaves on parameters and optimizers."""
