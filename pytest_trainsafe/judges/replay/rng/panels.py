"""The RNG ledger as a timeline by rank, around the first draw that breaks a rule.

Made while the trace exists.  Draws from equal states, which give equal numbers, have one colour.
"""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.core.finding import Finding
from pytest_trainsafe.judges.replay.rng.draws import Draw, Draws, describe_draw, stream_of, when
from pytest_trainsafe.report.panels import Code, Event, Panel, State, Timeline
from pytest_trainsafe.report.sections import label
from pytest_trainsafe.report.source import code_at

#: The most draws of a rank, and the most ranks, that the timeline shows.
MOST_DRAWS, MOST_RANKS = 48, 32

#: The most places of which lines are shown.
MOST_PLACES = 4

#: The most seeds that a note names.
_MOST_SEEDS = 4


def draw_panels(draws: Draws, findings: Sequence[Finding]) -> tuple[Panel, ...]:
    """The draws of every rank in the step of the first broken rule; none if no rule is broken."""
    if not findings:
        return ()
    lead = findings[0]
    places = {each.where: each for each in reversed(findings) if each.where is not None}
    every = [draw for rank in draws.by_rank for draw in rank]
    at = next((draw for draw in every if draw.is_about(lead)), None)
    step = at.event.step if at is not None else lead.where.step if lead.where is not None else 0
    begin = at.event.phase == "initialisation" if at is not None else False
    events: list[Event] = []
    left = 0
    lanes = draws.trace.ranks[:MOST_RANKS]
    for lane, rank in enumerate(lanes):
        own = [
            draw
            for draw in draws.by_rank[rank.rank]
            if draw.event.step == step and (draw.event.phase == "initialisation") == begin
        ]
        first = next((n for n, draw in enumerate(own) if draw.is_about(lead)), 0)
        start = max(0, first - MOST_DRAWS // 4)
        left += max(0, len(own) - MOST_DRAWS)
        for number, draw in enumerate(own[start : start + MOST_DRAWS], start):
            wrong = draw.where is not None and draw.where in places
            led = draw.is_about(lead) and (at is None or draw.place == at.place)
            state: State = "first" if led else "wrong" if wrong else ""
            events.append(_event(lane, number, draw, state))
    if not events:
        return ()
    what = "while the model is initialised" if begin else f"in step {step}"
    note = f"Draws {what}, in the order in which each rank made them. "
    note += "Equal colours and states are equal numbers."
    if left:
        note += f" {left} more draws are left out."
    return (
        *_lines(draws, at, lead.source),
        Timeline(
            title="Random draws of every rank",
            lanes=tuple(_named(rank.rank, rank.coordinates) for rank in lanes),
            events=tuple(events),
            unit="number of the draw",
            note=note,
        ),
    )


def _lines(draws: Draws, at: Draw | None, first: str) -> list[Code]:
    """The code of a draw, and where the ranks' generators were seeded that it is made from.

    The line `first` is shown first if it is one of these.
    """
    if at is None:
        return []
    there = [
        draw
        for rank in draws.by_rank
        for draw in rank
        if (draw.event.step, draw.place) == (at.event.step, at.place)
    ]
    places = {at.event.line: ("Source: the draw", describe_draw(at))}
    for draw in (at, *there):
        event = draw.event
        seeds: dict[int, str] = {}  # of each rank the first
        for each in there:
            if (each.event.seeded, each.event.generator) == (event.seeded, event.generator):
                seeds.setdefault(each.rank.rank, f"seed {each.event.seed} on rank {each.rank.rank}")
        note = f"seeds {event.generator}"
        if event.seed:
            note += f", with {' and '.join([*seeds.values()][:_MOST_SEEDS])}"
        places.setdefault(draw.event.seeded, ("Source: where its generator is seeded", note))
        note = f"sets the state of {draw.event.generator} again"
        places.setdefault(draw.event.restored, ("Source: where its state is set", note))
    ordered = sorted(places.items(), key=lambda each: each[0] != first)
    found = [code_at(line, *said) for line, said in ordered if line]
    return [code for code in found if code is not None][:MOST_PLACES]


def _event(lane: int, number: int, draw: Draw, state: State) -> Event:
    event = draw.event
    operator = event.operator.partition(".")[0].strip("_") or "draw"
    name = f"{operator} {event.before.partition('.')[0][:4]}"
    detail = label(f"{describe_draw(draw)}; {stream_of(draw)}; {when(draw)}", 390)
    anchor = label(draw.where) if draw.where is not None else ""
    group = label(event.before, 60)
    return Event(lane, float(number), 1.0, label(name, 60), group, state, detail, anchor)


def _named(rank: int, coordinates: dict[str, int] | object) -> str:
    axes = dict(coordinates) if isinstance(coordinates, dict) else {}
    at = " ".join(f"{axis}{place}" for axis, place in axes.items() if place)
    return label(f"rank {rank}" + (f" ({at})" if at else ""), 80)
