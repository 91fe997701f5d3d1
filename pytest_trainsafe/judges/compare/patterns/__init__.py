"""Known relations of a wrong value to the correct one, such as a partial sum; one in each file."""
