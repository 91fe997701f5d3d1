"""The launcher that starts ranks by a real torchrun."""
