"""Relations of a wrong value to the correct one, one per file."""
