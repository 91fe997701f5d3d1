"""The code at fault: where it is, and the clauses that describe it."""
