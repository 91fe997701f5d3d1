"""Healthy programs that train with DeepSpeed's engines, each with a loop of its own."""
