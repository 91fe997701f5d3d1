"""The launcher that starts ranks with the real torchrun."""
