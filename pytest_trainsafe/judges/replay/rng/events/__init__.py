"""The RNG ledger in a trace: `events` defines its events, `check` tests their fields."""
