"""Says along which axis ranks break a rule on random numbers, and which of them draw equal ones."""

from __future__ import annotations

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.core.parting import classes_of, parting_text
from pytest_trainsafe.core.usage import name_ranks
from pytest_trainsafe.judges.replay.rng.draws import Draws


def axis_text(draws: Draws, lead: Finding) -> str:
    """The axis of a Finding, and how the ranks' draws part at the place that it is about.

    A rule without an axis is about the draws of each rank alone.
    """
    axis = "" if lead.pattern is None else lead.pattern.axis
    if not axis:
        return "none: this rule is about the draws of each rank alone"
    every = (draw for rank in draws.by_rank for draw in rank)
    at = next((draw for draw in every if draw.is_about(lead)), None)
    if at is None:
        return axis
    states: dict[int, str] = {}  # micro-batches have other numbers on other ranks of dp
    for rank, own in enumerate(draws.by_rank):
        for draw in own:
            if (draw.event.step, draw.place) == (at.event.step, at.place):
                states.setdefault(rank, draw.event.before)
    classes = classes_of(states)
    if len(classes) == 1 and len(classes[0]) > 1:
        return f"{axis}: {name_ranks(classes[0])} draw equal numbers there"
    apart = parting_text(draws.trace.point, classes, "draw equal numbers")
    return f"{axis}: {apart}" if apart else axis
