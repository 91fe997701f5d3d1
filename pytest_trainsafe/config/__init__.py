"""Settings of a run: options and their ini twins, checks to accept, the required torch."""
