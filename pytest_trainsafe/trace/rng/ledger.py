"""Reads the RNG ledger of a rank."""

from __future__ import annotations

from pytest_trainsafe.trace.reader import RankTrace
from pytest_trainsafe.trace.rng.events import DrawEvent, RngEvent


def ledger(rank: RankTrace) -> list[RngEvent]:
    """The RNG ledger of a rank, in the order of time."""
    return [event for event in rank.events if isinstance(event, RngEvent)]


def initial_draws(rank: RankTrace) -> list[DrawEvent]:
    """The draws of a rank's initialisation, in the order of time."""
    return [draw for draw in rank.events_of(DrawEvent) if draw.phase == "initialisation"]


def first_apart(left: RankTrace, right: RankTrace) -> tuple[DrawEvent, DrawEvent] | None:
    """The first draw of the initialisation that two ranks made from different states."""
    for one, other in zip(initial_draws(left), initial_draws(right), strict=False):
        if one.before != other.before:
            return one, other
    return None


def source(draw: DrawEvent) -> str:
    """Where the numbers of a draw come from: the generator with its seed, else with its state."""
    return f"{draw.generator}, {f'seed {draw.seed}' if draw.seed else f'state {draw.before}'}"


def sources(left: DrawEvent, right: DrawEvent) -> tuple[str, str]:
    """Where the numbers of two draws from different states come from, in different texts."""
    one, other = source(left), source(right)
    if one != other:
        return one, other
    return f"{one}, state {left.before}", f"{other}, state {right.before}"
