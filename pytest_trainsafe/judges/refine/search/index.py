"""The tensors of all ranks and their reductions over axes, by content."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
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
            self._add(name, (), held)
            for steps, sums in _sums(held, mesh, numbers):
                self._add(name, steps, sums)

    def _add(
        self, name: str, steps: tuple[Step, ...], held: dict[Coordinate, torch.Tensor]
    ) -> None:
        number = len(self.entries)
        self.entries.append(Entry(name, steps, frozenset(held), number))
        keys: dict[int, Key] = {}
        for place, tensor in held.items():
            self.tensors[number, place] = tensor
            key = keys.get(id(tensor))
            if key is None:
                key = keys[id(tensor)] = content(tensor)
            self._places.setdefault(key, {}).setdefault(number, set()).add(place)

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


def _sums(
    held: dict[Coordinate, torch.Tensor], mesh: RankMesh, numbers: Numbers
) -> Iterator[tuple[tuple[Step, ...], dict[Coordinate, torch.Tensor]]]:
    """The sums of a tensor over each axis and over pairs of axes; of masks, what all of them hold.

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
    axes = [axis for axis, size in mesh.axes.items() if size > 1]
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
