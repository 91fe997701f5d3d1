"""The RNG ledger in a trace: `events` defines its events, `difference` compares two ledgers."""
