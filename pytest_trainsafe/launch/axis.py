"""Says along which axes of the mesh the ranks of a failed group part.  Called by `failure`."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_trainsafe.core.mesh.parting import classes_of, parting_text
from pytest_trainsafe.core.point import Point
from pytest_trainsafe.core.usage import name_ranks
from pytest_trainsafe.launch.collectives.collective import Collective, LedgerError, read_ledger
from pytest_trainsafe.launch.files import RankFiles
from pytest_trainsafe.launch.result import GroupResult

#: The most bytes of a ledger that is read, and the most ranks whose ledgers are.
_MOST_BYTES, _MOST_RANKS = 2**23, 64


def axis_text(result: GroupResult, point: Point, stood: Sequence[str]) -> str:
    """The axes of the calls in which ranks of a hung group wait, and along which ranks part.

    `stood` says of each rank where it stood.  "" for one rank, and for a group that ended in
    another way: where an exception of one rank finds the others says nothing.
    """
    hung = [rank.rank for rank in result.ranks if rank.status == "hung"]
    if len(result.ranks) != point.world_size or not (hung or result.mismatches):
        return ""
    last = {n: call for n in range(len(stood))[:_MOST_RANKS] if (call := _last(result, n))}
    at_call = hung or [rank.rank for rank in result.ranks if rank.status != "ok"]
    calls: dict[tuple[str, str], list[int]] = {}
    for rank in (each for each in at_call if each in last):
        axes = " and ".join(point.axes_between(last[rank].ranks))
        if axes:
            calls.setdefault((axes, last[rank].op), []).append(rank)
    texts = [
        f"{axes}: the last call of {name_ranks(ranks)} is {op} over {axes}"
        for (axes, op), ranks in calls.items()
    ]
    places = {rank: (text, str(last.get(rank, ""))) for rank, text in enumerate(stood)}
    apart = parting_text(point, classes_of(places), "stand at one place")
    return "; ".join([*texts, *filter(None, [apart])])


def _last(result: GroupResult, rank: int) -> Collective | None:
    """The last collective that a rank called; None if it called none, or it is not known."""
    path = RankFiles(result.folder, rank).ledger
    try:
        calls = read_ledger(path)[0] if path.stat().st_size <= _MOST_BYTES else []
    except (LedgerError, OSError):
        return None
    return calls[-1] if calls else None
