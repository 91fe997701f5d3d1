"""The ranks of a distributed graph: their coordinates, and the ranks of each process group."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pytest_trainsafe.core.untrusted import shown
from pytest_trainsafe.judges.refine.errors import InputRelationError

Coordinate = tuple[int, ...]
#: How the name of a group begins that has its ranks in it, as captures name groups: "ranks 0 2".
RANKS = "ranks "


@dataclass(frozen=True)
class RankMesh:
    """Axes and their sizes, outermost first; the last axis varies fastest with the rank.

    `groups` says for the name of a process group which axes it spans, or its lists of ranks.  The
    group of a name that is not in it has all ranks, if the mesh has one axis.
    """

    axes: Mapping[str, int]
    groups: Mapping[str, tuple[str, ...] | tuple[tuple[int, ...], ...]] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        for name, size in self.axes.items():
            if type(size) is not int or size < 1:
                raise InputRelationError(f"axis {shown(name)} has the size {size}; give an integer")
        for name, group in self.groups.items():
            self._check(name, group)

    def _check(self, name: str, group: Sequence[object]) -> None:
        unknown = [each for each in group if isinstance(each, str) and each not in self.axes]
        if unknown:
            raise InputRelationError(
                f"group {shown(name)} spans {shown(unknown[0])}, which is no axis of the mesh "
                f"{', '.join(self.axes)}"
            )
        ranks = [each for part in group if isinstance(part, tuple) for each in part]
        if ranks and sorted(ranks) != list(range(self.size)):
            raise InputRelationError(
                f"group {shown(name)} lists the ranks {ranks}; its lists must have each of the "
                f"{self.size} ranks once"
            )

    @property
    def size(self) -> int:
        return math.prod(self.axes.values())

    @property
    def coordinates(self) -> list[Coordinate]:
        """The coordinate of each rank."""
        return list(itertools.product(*(range(size) for size in self.axes.values())))

    def group_of(self, name: str, rank: int) -> tuple[int, ...] | None:
        """The ranks of the group of this name that has `rank`, or None if the name is unknown."""
        if name.startswith(RANKS):
            return self._listed(name, rank)
        if self.size == 1:
            return (rank,)
        group = self.groups.get(name)
        if group is None and name.startswith("{{"):
            group = _replica_groups(name)
            self._check(name, group)
        if group is None:
            if len(self.axes) != 1:
                return None
            group = tuple(self.axes)
        if all(isinstance(each, tuple) for each in group):
            lists = [each for each in group if isinstance(each, tuple)]
            return next(each for each in lists if rank in each)
        spanned = [number for number, axis in enumerate(self.axes) if axis in group]
        own = self.coordinates[rank]
        return tuple(
            other
            for other, place in enumerate(self.coordinates)
            if all(place[n] == own[n] for n in range(len(place)) if n not in spanned)
        )

    def _listed(self, name: str, rank: int) -> tuple[int, ...]:
        texts = name.removeprefix(RANKS).split(" ")
        ranks = tuple(int(text) for text in texts if text.isdecimal() and len(text) < 10)
        if len(ranks) < len(texts) or rank not in ranks or max(ranks) >= self.size:
            raise InputRelationError(
                f"rank {rank} communicates in the group {shown(name)}; the mesh "
                f"{dict(self.axes)} has {self.size} ranks"
            )
        return ranks


def _replica_groups(text: str) -> tuple[tuple[int, ...], ...]:
    """The lists of ranks in the replica_groups of HLO, such as {{0,1},{2,3}}."""
    lists = text.strip("{}").split("},{")
    return tuple(
        tuple(int(rank) for rank in each.split(",") if rank.strip().isdecimal()) for each in lists
    )
