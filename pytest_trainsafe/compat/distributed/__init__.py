"""Private parts of torch.distributed.

parallel        data parallel wrappers: their communication hooks, states and divisors
process_groups  process groups by name, the default store, the flight recorder
rank_worlds     several ranks of one process, and the backend that they share
"""
