"""The tensors of all ranks and their reductions over axes, by content."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from pytest_trainsafe.arithmetic import Numbers
from pytest_trainsafe.judges.refine.evaluate.lockstep import Tensors
from pytest_trainsafe.judges.refine.mesh import Coordinate, RankMesh
from pytest_trainsafe.judges.refine.relations.pieces import total
from pytest_trainsafe.judges.refine.relations.relation import Kind, Step
from pytest_trainsafe.judges.refine.search.content import Key, content, multiple

#: The largest number of mesh axes over which sums are formed at once.
_SUMMED = 2


@dataclass(frozen=True)
class Entry:
    """A tensor of the ranks by name, reduced over the axes of `steps`.

    `held` are the coordinates that have it; a reduced axis has the coordinate 0 in them.
    """

    name: str
    steps: tuple[Step, ...]
    held: frozenset[Coordinate]
    number: int

    @property
    def reduced(self) -> frozenset[str]:
        return frozenset(step.axis for step in self.steps)


class Index:
    """Entries by content; `tensors` of each entry are kept by coordinate."""

    def __init__(self, ranks: Sequence[Tensors], mesh: RankMesh, numbers: Numbers) -> None:
        self.mesh = mesh
        self.entries: list[Entry] = []
        self.tensors: dict[tuple[int, Coordinate], torch.Tensor] = {}
        self._places: dict[Key, dict[int, set[Coordinate]]] = {}
        self._multiples: dict[Key, list[tuple[int, Coordinate, torch.Tensor]]] | None = None
        for name, held in _by_name(ranks, mesh).items():
            keys = self._add(name, (), held)
            axes = [
                axis
                for number, (axis, size) in enumerate(mesh.axes.items())
                if size > 1 and _differ(keys, number)
            ]
            for steps, sums in _sums(held, mesh, axes, numbers):
                self._add(name, steps, sums)

    def _add(
        self, name: str, steps: tuple[Step, ...], held: dict[Coordinate, torch.Tensor]
    ) -> dict[Coordinate, Key]:
        number = len(self.entries)
        self.entries.append(Entry(name, steps, frozenset(held), number))
        known: dict[int, Key] = {}
        keys: dict[Coordinate, Key] = {}
        for place, tensor in held.items():
            self.tensors[number, place] = tensor
            key = known.get(id(tensor))
            if key is None:
                key = known[id(tensor)] = content(tensor)
            keys[place] = key
            self._places.setdefault(key, {}).setdefault(number, set()).add(place)
        return keys

    def find(self, key: Key) -> dict[int, set[Coordinate]]:
        """The entries with this content, by number, and the coordinates that hold it."""
        return self._places.get(key, {})

    def multiples(self, key: Key) -> list[tuple[int, Coordinate, torch.Tensor]]:
        """Entries of which a tensor is a multiple, each with the element that is its unit."""
        if self._multiples is None:
            self._multiples = {}
            for (number, place), tensor in self.tensors.items():
                found = multiple(tensor)
                if found is not None:
                    self._multiples.setdefault(found[0], []).append((number, place, found[1]))
        return self._multiples.get(key, [])


def _by_name(ranks: Sequence[Tensors], mesh: RankMesh) -> dict[str, dict[Coordinate, torch.Tensor]]:
    found: dict[str, dict[Coordinate, torch.Tensor]] = {}
    for place, values in zip(mesh.coordinates, ranks, strict=True):
        for name, value in values.items():
            if isinstance(value, torch.Tensor) and value.numel():
                found.setdefault(name, {})[place] = value
    return found


def _differ(keys: Mapping[Coordinate, Key], axis: int) -> bool:
    """Whether ranks along an axis hold different terms.

    A sum of equal terms is a multiple of each of them, which no clean relation is: so the average
    in place of a sum leaves no relation, although the ranks' averages have the right sum.
    """
    groups: dict[Coordinate, set[Key]] = {}
    for place, key in keys.items():
        groups.setdefault(place[:axis] + place[axis + 1 :], set()).add(key)
    return any(len(each) > 1 for each in groups.values())


def _sums(
    held: dict[Coordinate, torch.Tensor], mesh: RankMesh, axes: Sequence[str], numbers: Numbers
) -> Iterator[tuple[tuple[Step, ...], dict[Coordinate, torch.Tensor]]]:
    """The sums of a tensor over each of `axes` and over pairs; of masks, what all of them hold.

    So the words outside of all ranks' parts of the vocabulary are those outside of each part.
    """
    first = next(iter(held.values()))
    kind: Kind = "all" if first.dtype is torch.bool else "sum"
    if len(held) != mesh.size or any(
        each.shape != first.shape or each.dtype != first.dtype for each in held.values()
    ):
        return
    if kind == "sum" and not first.is_floating_point():
        return
    for count in range(1, min(len(axes), _SUMMED) + 1):
        for over in itertools.combinations(axes, count):
            sums = held
            for axis in over:
                sums = _summed(sums, list(mesh.axes).index(axis), numbers)
            yield tuple(Step(kind, axis) for axis in over), sums


def _summed(
    held: dict[Coordinate, torch.Tensor], axis: int, numbers: Numbers
) -> dict[Coordinate, torch.Tensor]:
    groups: dict[Coordinate, list[torch.Tensor]] = {}
    for place, tensor in sorted(held.items()):
        groups.setdefault((*place[:axis], 0, *place[axis + 1 :]), []).append(tensor)
    return {place: total(terms, numbers) for place, terms in groups.items()}
