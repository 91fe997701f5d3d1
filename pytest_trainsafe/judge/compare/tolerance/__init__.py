"""How far rounding alone may take a tensor: measured on the reference."""
