"""Reads the RNG ledger of a rank."""

from __future__ import annotations

from pytest_trainsafe.trace.reader import RankTrace
from pytest_trainsafe.trace.rng.events import RngEvent


def ledger(rank: RankTrace) -> list[RngEvent]:
    """The RNG ledger of a rank, in the order of time."""
    return [event for event in rank.events if isinstance(event, RngEvent)]
