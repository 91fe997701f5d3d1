"""Watchers of what goes into models and losses: batches, tokens, masks and targets."""
