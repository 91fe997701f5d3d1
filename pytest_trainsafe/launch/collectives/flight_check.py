"""Compares the flight records of all ranks: finds where ranks disagree, and which ranks lag.

The check is conservative: among calls with the same sequence number, by which gloo pairs calls, it
compares only what must be equal on all ranks.  `ledger_check` gives better messages for the calls
that Python makes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from pytest_trainsafe.core.usage import name_ranks
from pytest_trainsafe.launch.collectives.flight import Flight, GroupKey, Issued

#: Operations of gloo in which all ranks contribute the same number of elements.
_EVEN = ("all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter")

_Calls = Mapping[int, list[Issued]]


def check_flights(
    flights: Sequence[Flight | None],
    finished: Sequence[bool],
    reported: Collection[GroupKey | None] = (),
) -> list[str]:
    """The first mismatch of every process group, as sentences; empty if all ranks agree.

    `finished` says which ranks' programs returned; a missing collective is a mismatch only on
    these.  The groups in `reported` are skipped: their mismatch is already known.
    """
    found = []
    for group, calls in _by_group(flights).items():
        if group not in reported and (text := _first_mismatch(group[1], calls, finished)):
            found.append(f"collective mismatch: {text}")
    return found


def _by_group(flights: Sequence[Flight | None]) -> dict[GroupKey, dict[int, list[Issued]]]:
    """The collectives of each rank, by group; ranks without a reliable record are excluded.

    Groups that list a rank beyond the world size are excluded too: a program may create them.
    """
    groups: dict[GroupKey, dict[int, list[Issued]]] = {}
    for rank, flight in enumerate(flights):
        for group, issued in (flight or {}).items():
            if rank in group[1] and max(group[1]) < len(flights):
                groups.setdefault(group, {})[rank] = issued
    return groups


def _first_mismatch(members: tuple[int, ...], calls: _Calls, finished: Sequence[bool]) -> str:
    group = f"of the group of ranks {list(members)}"
    numbered = {
        rank: {call.collective_seq_id: call for call in made} for rank, made in calls.items()
    }
    last = {rank: max(made, default=0) for rank, made in numbered.items()}
    for number in sorted(set().union(*numbered.values())):
        made = {rank: all_[number] for rank, all_ in numbered.items() if number in all_}
        one, *others = made
        for other in others:
            if why := _disagree(made[one], made[other]):
                return (
                    f"collective #{number} {group} (numbered by torch) differs ({why}): "
                    f"rank {one} {made[one]}; rank {other} {made[other]}"
                )
        # A missing lower number proves nothing: overwritten entries, or a monitored_barrier.
        missing = [rank for rank in numbered if last[rank] < number]
        done = [rank for rank in missing if finished[rank]]
        if done:
            return (
                f"collective #{number} {group} (numbered by torch) is made by rank {one} but "
                f"not by rank {done[0]}, which finished after #{last[done[0]]}: "
                f"rank {one} {made[one]}"
            )
        if missing:
            return ""
    return ""


def _disagree(a: Issued, b: Issued) -> str:
    """Why two ranks' calls cannot be one collective; "" if they can."""
    if a.op != b.op:
        return "operation"
    if a.dtypes and b.dtypes and a.dtypes != b.dtypes:
        return "dtype"
    if a.op in _EVEN and a.numel != b.numel:
        return "number of elements"
    return ""


def waiting(flights: Sequence[Flight | None], ended: Sequence[str]) -> list[str]:
    """One line for each group in which a rank waits, with the state of every rank of the group.

    `ended` says how each rank's program ended ("finished", "raised"), "" while it runs.  A rank
    that ended does not wait, even if its record has an open collective: torch marks a collective
    as retired a moment after its result is available.
    """
    lines = []
    for members, calls, first in _awaited(flights, ended):
        ahead = first.collective_seq_id
        places: dict[tuple[str, str], list[int]] = {}
        for rank in members:
            if rank in calls:
                place = _place(calls[rank], ended[rank], ahead)
            else:
                place = ("left", " no record") if flights[rank] is None else _UNKNOWN
            places.setdefault(place, []).append(rank)
        states = [
            f"{name_ranks(ranks)} {verb if len(ranks) > 1 else _singular(verb)}{rest}"
            for (verb, rest), ranks in places.items()
        ]
        lines.append(f"group of ranks {list(members)}: {'; '.join(states)}")
    return lines


def missed(flights: Sequence[Flight | None], ended: Sequence[str]) -> list[str]:
    """For each rank the collective that it has not issued while others wait in it; "" for none.

    For example "all_reduce #21".  `ended` is as in `waiting`.
    """
    found = [""] * len(flights)
    for members, calls, first in _awaited(flights, ended):
        for rank in members:
            issued = calls[rank][-1].collective_seq_id if calls.get(rank) else 0
            if rank in calls and not found[rank] and issued < first.collective_seq_id:
                found[rank] = f"{first.op} #{first.collective_seq_id}"
    return found


def _awaited(
    flights: Sequence[Flight | None], ended: Sequence[str]
) -> Iterator[tuple[tuple[int, ...], _Calls, Issued]]:
    """The groups in which a rank waits: members, their calls, and the last call waited for."""
    for (_, members), calls in _by_group(flights).items():
        running = (made for rank, made in calls.items() if not ended[rank])
        open_ = [call for made in running if (call := _first_open(made))]
        if open_:
            yield members, calls, max(open_, key=lambda call: call.collective_seq_id)


def _first_open(made: list[Issued]) -> Issued | None:
    """The first collective that has not completed; later ones may be in flight (DDP's buckets)."""
    return next((call for call in made if not call.retired), None)


#: The state of a rank that did not create the group, or whose record of it is unreliable.
_UNKNOWN = ("have", " no record of it")


def _place(made: list[Issued], ended: str, ahead: int) -> tuple[str, str]:
    """The state of a rank in its process group, as a clause without a subject.

    Returns a verb in the plural and the text that follows the verb, such as ("wait", " in ...").
    `made` lists the collectives that the rank issued, and `ended` says how its program ended, ""
    while it runs.  `ahead` is the highest sequence number among the collectives in which ranks of
    the group wait: a rank that does not wait lags if its last collective has a lower number.
    """
    after = f" after {made[-1]}" if made else " with none issued"
    if ended:
        return ended, after
    if call := _first_open(made):
        return "wait", f" in {call}"
    behind = not made or made[-1].collective_seq_id < ahead
    return ("lag", after) if behind else ("passed", f" {made[-1]}")


def _singular(verb: str) -> str:
    return {"wait": "waits", "lag": "lags", "have": "has"}.get(verb, verb)
