"""The RNG ledger in a trace.

`events` defines its events, `states` turns the states of generators into the texts that they have,
and `difference` compares two ledgers.
"""
