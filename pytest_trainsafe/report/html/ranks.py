"""The panels of a group of ranks that failed: where each rank stood, and its last collectives."""

from __future__ import annotations

from pytest_trainsafe.core.usage import name_ranks
from pytest_trainsafe.launch.collectives.collective import Collective, LedgerError, read_ledger
from pytest_trainsafe.launch.failure import raised_at, standing, stood_at
from pytest_trainsafe.launch.files import RankFiles
from pytest_trainsafe.launch.result import GroupResult
from pytest_trainsafe.report.panels import Event, Panel, State, Table, Timeline
from pytest_trainsafe.report.sections import label
from pytest_trainsafe.report.source import code_at

#: The last collectives of each rank that are drawn, and the most ranks.
MOST_CALLS, MOST_RANKS = 40, 64

#: The most places whose lines are shown.
MOST_PLACES = 4

#: The most bytes of a ledger that is read: some ten thousand calls.
_MOST_BYTES = 2**23


def rank_panels(result: GroupResult) -> list[Panel]:
    """A table of the ranks, and their last collectives in the order in which each made them."""
    stood = standing(result)
    shown = result.ranks[:MOST_RANKS]
    left = len(result.ranks) - len(shown)
    table = Table(
        title="Where every rank stood",
        columns=("rank", "stood", "", "last collective"),
        rows=tuple(
            (
                f"rank {rank.rank}",
                label(stood[rank.rank][0]),
                _part(rank.status, stood[rank.rank][1]),
                label(rank.last_collective),
            )
            for rank in shown
        ),
        note=f"{left} more ranks" if left else "",
    )
    panels: list[Panel] = [*_lines(result), table]
    calls = [_calls(result, rank.rank) for rank in shown]
    longest = max(map(len, calls), default=0)
    if not longest:
        return panels
    begin = max(0, longest - MOST_CALLS)
    events = [
        Event(
            rank.rank,
            float(number),
            1.0,
            label(_short(call), 60),
            label(call.op, 60),
            _of_call(rank.status, stood[rank.rank][1], number == len(made) - 1),
            label(call),
        )
        for rank, made in zip(shown, calls, strict=True)
        for number, call in enumerate(made)
        if number >= begin
    ]
    timeline = Timeline(
        title="Collectives of every rank",
        lanes=tuple(f"rank {rank.rank}" for rank in shown),
        events=tuple(events[:2_000]),
        unit="number of the rank's call",
        note="Each bar is a call, in the order in which its rank made it. The last call of a rank "
        "that did not end is the one in which it waits.",
    )
    return [*panels, timeline]


def _part(status: str, odd: bool) -> str:
    """What a rank has to do with the failure; a rank that ended as it should is not wrong."""
    if not odd:
        return ""
    return "had finished: the others wait in vain" if status == "ok" else "the odd one out"


def _lines(result: GroupResult) -> list[Panel]:
    """The code where the first rank failed, or where ranks wait or part, each place once."""
    places: dict[str, list[int]] = {}
    if line := raised_at(result):
        places[line] = []
    for rank, place in stood_at(result).items():
        places.setdefault(place, []).append(rank)
    made = []
    for place, ranks in [*places.items()][:MOST_PLACES]:
        note = f"{name_ranks(ranks)} stood here" if ranks else ""
        made.append(code_at(place, "Source: where ranks stood" if ranks else "Source", note))
    return [each for each in made if each is not None]


def _calls(result: GroupResult, rank: int) -> list[Collective]:
    path = RankFiles(result.folder, rank).ledger
    try:
        return read_ledger(path)[0] if path.stat().st_size <= _MOST_BYTES else []
    except (LedgerError, OSError):
        return []


def _short(call: Collective) -> str:
    return call.op if call.numel is None else f"{call.op} {'x'.join(map(str, call.shape or ()))}"


def _of_call(status: str, odd: bool, last: bool) -> State:
    if not last or status == "ok":
        return ""
    return "first" if odd else "wrong"
