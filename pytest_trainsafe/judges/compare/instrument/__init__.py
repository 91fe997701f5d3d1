"""Changes the values of a running program: adds noise as small as rounding, or replaces them."""
