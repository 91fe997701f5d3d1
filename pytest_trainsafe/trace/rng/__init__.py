"""The RNG ledger in a trace: `events` defines its events, and `check` refuses malformed ones."""
