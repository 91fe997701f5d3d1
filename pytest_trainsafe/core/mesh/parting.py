"""Finds the mesh axes along which ranks part, from which ranks agree.

Called for hung groups and for random draws, which have no tensor whose pattern names an axis.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence

from pytest_trainsafe.core.point import Point

#: The most classes of ranks that a text lists.
MOST_CLASSES = 4


def classes_of(kinds: Mapping[int, Hashable]) -> list[list[int]]:
    """The ranks that are of one kind, for each kind; `kinds` has the kind of each rank."""
    found: dict[Hashable, list[int]] = {}
    for rank in sorted(kinds):
        found.setdefault(kinds[rank], []).append(rank)
    return [*found.values()]


def parted(point: Point, classes: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """The fewest mesh axes whose coordinates tell the classes of ranks apart; () for one class."""
    if len(classes) < 2:
        return ()
    of = {rank: number for number, ranks in enumerate(classes) for rank in ranks}
    axes = point.axes_between(of)
    for count in range(1, len(axes) + 1):
        for chosen in itertools.combinations(axes, count):
            seen: dict[tuple[int, ...], int] = {}
            for rank, number in of.items():
                place = point.coordinates(rank)
                if seen.setdefault(tuple(place[axis] for axis in chosen), number) != number:
                    break
            else:
                return chosen
    return ()


def parting_text(point: Point, classes: Sequence[Sequence[int]], alike: str) -> str:
    """A clause on the axes along which classes of ranks part, "" for one class.

    For example `ranks that draw equal numbers: 0, 2 / 1, 3, so ranks part along tp and agree along
    dp`, where `alike` is "draw equal numbers".
    """
    axes = parted(point, classes)
    if not axes:
        return ""
    named = [", ".join(map(str, ranks)) for ranks in classes[:MOST_CLASSES]]
    named += ["…"] if len(classes) > MOST_CLASSES else []
    ranks = [rank for members in classes for rank in members]
    same = [axis for axis in point.axes_between(ranks) if axis not in axes]
    text = f"ranks that {alike}: {' / '.join(named)}, so ranks part along {' and '.join(axes)}"
    return f"{text} and agree along {' and '.join(same)}" if same else text
