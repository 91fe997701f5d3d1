"""The RNG ledger in a trace: `events` defines its events, `difference` compares two ledgers.

`expectation` has `expect_rng`, by which a test declares what it expects of draws.
"""
