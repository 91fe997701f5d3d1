"""A second engine: z3 proves the stages of a proof again, as identities of real terms.

terms    numbers that are terms of unknowns, computed by the same semantics
stages   the parts of graphs between tensors with known relations
z3       whether two terms are equal, by simplifying and then by solving
workers  stages side by side, in processes with limits of time and memory
"""
