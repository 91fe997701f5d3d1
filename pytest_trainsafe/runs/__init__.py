"""Makes the Runs that tests need: launched ahead, shared, cached."""
