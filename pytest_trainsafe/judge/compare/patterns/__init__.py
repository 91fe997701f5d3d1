"""What a wrong value is, in relation to the right one: one file for each relation."""
