"""All relations of a sequential tensor: its pieces are looked up among the ranks' tensors."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import torch

from pytest_trainsafe.judges.refine.mesh import Coordinate
from pytest_trainsafe.judges.refine.relations.relation import Part, Relation, Step, preference
from pytest_trainsafe.judges.refine.search.content import content, varies
from pytest_trainsafe.judges.refine.search.cuts import cuts, microbatches
from pytest_trainsafe.judges.refine.search.index import Entry, Index

#: The most relations of one tensor that are kept; the preferred ones are.
MAX_KEPT = 12
#: The most dimensions of which all orders are tried.
_PERMUTED = 4

Piece = tuple[tuple[int, ...], torch.Tensor]


class Finder:
    """Looks up sequential tensors; equal tensors are looked up once."""

    def __init__(self, index: Index, fused: Collection[tuple[Part, ...]] = ()) -> None:
        self.index = index
        self.fused = list(fused)
        self._known: dict[tuple[object, ...], list[Relation]] = {}

    def relations(self, name: str, x: torch.Tensor) -> list[Relation]:
        """The relations of a sequential tensor, the preferred ones first; at most MAX_KEPT."""
        key = (tuple(x.shape), content(x))
        if key not in self._known:
            self._known[key] = self._found(x)
        found = self._known[key]
        # Any part of a constant is equal to any other: a cut of another says nothing.
        if constant(x) and not varies(x):
            found = [each for each in found if not each.steps or each.names == (name,)]
            own = [each for each in found if each.names == (name,)]
            if own and not x.is_floating_point():  # A few small integers are equal by chance.
                found = own
        # That one rank holds it says nothing of a tensor that the ranks hold otherwise: the rank of
        # a vocabulary's largest logit may be the same for all inputs that were drawn.
        whole = [each for each in found if all(step.kind != "at" for step in each.steps)]
        return sorted(whole or found, key=lambda each: preference(each, name))[:MAX_KEPT]

    def _found(self, x: torch.Tensor) -> list[Relation]:
        if not x.numel():
            return []
        found = list(dict.fromkeys(self._straight(x)))
        if constant(x):
            return found
        if not found:
            found = list(dict.fromkeys(self._cut_microbatches(x)))
        if not found and 1 < x.ndim <= _PERMUTED:
            found = list(dict.fromkeys(self._turned(x)))
        return found

    def _straight(self, x: torch.Tensor) -> Iterator[Relation]:
        yield from self._assembled([((), x)], ())
        axes = [axis for axis, size in self.index.mesh.axes.items() if size > 1]
        if x.numel() == 1:
            return
        for axis in axes:
            for step, pieces in self._cut(x, axis):
                yield from self._assembled(
                    [((number,), piece) for number, piece in enumerate(pieces)], (step,)
                )
        for outer, inner in itertools.permutations(axes, 2):
            yield from self._cut_twice(x, outer, inner)
        yield from self._microbatches(x)

    def _cut(self, x: torch.Tensor, axis: str) -> Iterator[tuple[Step, list[torch.Tensor]]]:
        return cuts(x, axis, self.index.mesh.axes[axis], self.fused)

    def _cut_twice(self, x: torch.Tensor, outer: str, inner: str) -> Iterator[Relation]:
        for first, rows in self._cut(x, outer):
            if first.by > 1:
                continue
            tables = [list(self._cut(row, inner)) for row in rows]
            for ways in zip(*tables, strict=True):
                pieces: list[Piece] = [
                    ((i, j), piece)
                    for i, (_, parts) in enumerate(ways)
                    for j, piece in enumerate(parts)
                ]
                yield from self._assembled(pieces, (first, ways[0][0]))

    def _assembled(self, pieces: list[Piece], steps: tuple[Step, ...]) -> Iterator[Relation]:
        """Relations in which the ranks along the steps' axes hold these pieces."""
        first = self.index.find(content(pieces[0][1]))
        if not first:
            return
        found = [self.index.find(content(piece)) for _, piece in pieces]
        if not all(found):
            return
        for number in first:
            if all(number in each for each in found):
                entry = self.index.entries[number]
                places = [each[number] for each in found]
                yield from self._held(entry, steps, [index for index, _ in pieces], places)

    def _held(
        self,
        entry: Entry,
        steps: tuple[Step, ...],
        indices: Sequence[tuple[int, ...]],
        places: Sequence[set[Coordinate]],
    ) -> Iterator[Relation]:
        """Relations by the coordinates that hold each piece; all others must be replicas."""
        axes = list(self.index.mesh.axes)
        joined = [axes.index(step.axis) for step in steps]
        if {step.axis for step in steps} & entry.reduced:
            return
        free = [
            number
            for number, axis in enumerate(axes)
            if number not in joined and axis not in entry.reduced
        ]
        fixed = {number: 0 for number, axis in enumerate(axes) if axis in entry.reduced}
        orders = _orders(joined, indices, places)
        if orders is None:
            return
        ordered = tuple(
            step if order == tuple(range(len(order))) else _with_order(step, order)
            for step, order in zip(steps, orders, strict=True)
        )
        if any((step.parts or step.zigzag) and step.order for step in ordered):
            return
        wanted = [
            {number: orders[n][index[n]] for n, number in enumerate(joined)} | fixed
            for index in indices
        ]
        if all(
            self._everywhere(want, free, held) for want, held in zip(wanted, places, strict=True)
        ):
            yield Relation((*ordered, *entry.steps), (entry.name,))
        elif not steps or len(free) == 1:
            yield from self._somewhere(entry, ordered, wanted, free, places)

    def _everywhere(self, want: dict[int, int], free: Sequence[int], held: set[Coordinate]) -> bool:
        sizes = list(self.index.mesh.axes.values())
        return all(
            tuple(
                want[number] if number in want else rest[free.index(number)]
                for number in range(len(sizes))
            )
            in held
            for rest in itertools.product(*(range(sizes[number]) for number in free))
        )

    def _somewhere(
        self,
        entry: Entry,
        steps: tuple[Step, ...],
        wanted: Sequence[dict[int, int]],
        free: Sequence[int],
        places: Sequence[set[Coordinate]],
    ) -> Iterator[Relation]:
        """Relations of which only the ranks at one coordinate of an axis hold the tensor."""
        axes = list(self.index.mesh.axes)
        for number in free:
            others = [each for each in free if each != number]
            for index in range(self.index.mesh.axes[axes[number]]):
                if all(
                    self._everywhere(want | {number: index}, others, held)
                    for want, held in zip(wanted, places, strict=True)
                ):
                    at = Step("at", axes[number], numbers=(index,))
                    yield Relation((*steps, at, *entry.steps), (entry.name,))
                    break

    def _microbatches(self, x: torch.Tensor) -> Iterator[Relation]:
        """Micro-batches that all ranks hold, each in a tensor of its own."""
        for step, pieces in microbatches(x):
            names = [self._replicas(piece) for piece in pieces]
            chosen = [_alike(each, names[0]) for each in names if each]
            if len(chosen) == len(names) and len(set(chosen)) == len(chosen):
                yield Relation((step,), tuple(chosen))

    def _cut_microbatches(self, x: torch.Tensor) -> Iterator[Relation]:
        """Micro-batches that are cut over an axis, or micro-batches of the parts of its ranks."""
        for axis, size in self.index.mesh.axes.items():
            for step, batches in microbatches(x) if size > 1 else ():
                if x.shape[step.dim] % (len(batches) * size):
                    continue
                part = Step("concat", axis, step.dim)
                rows = [row.chunk(len(batches), step.dim) for row in x.chunk(size, step.dim)]
                of_ranks = [[*each] for each in zip(*rows, strict=True)]
                yield from self._in_tensors((part, step), part, of_ranks)
                cut_each = [batch.chunk(size, step.dim) for batch in batches]
                yield from self._in_tensors((step, part), part, cut_each)

    def _in_tensors(
        self, steps: tuple[Step, ...], part: Step, named: Sequence[Sequence[torch.Tensor]]
    ) -> Iterator[Relation]:
        """The relation in which the ranks hold the pieces of each micro-batch in one tensor."""
        found = []
        for pieces in named:
            rows: list[Piece] = [((number,), piece) for number, piece in enumerate(pieces)]
            held = self._assembled(rows, (part,))
            found.append([each.names[0] for each in held if each.steps == (part,)])
        chosen = [_alike(each, found[0]) for each in found if each]
        if len(chosen) == len(found) and len(set(chosen)) == len(chosen):
            yield Relation(steps, tuple(chosen))

    def _replicas(self, piece: torch.Tensor) -> list[str]:
        found = self.index.find(content(piece))
        entries = [(self.index.entries[number], places) for number, places in found.items()]
        return [
            entry.name
            for entry, places in entries
            if not entry.steps and len(places) == self.index.mesh.size
        ]

    def _turned(self, x: torch.Tensor) -> Iterator[Relation]:
        """Relations with the dimensions in another order than the ranks have them."""
        for order in itertools.permutations(range(x.ndim)):
            if order == tuple(range(x.ndim)) or sum(size > 1 for size in x.shape) < 2:
                continue
            back = tuple(order.index(dim) for dim in range(x.ndim))
            for relation in self._straight(x.permute(order).contiguous()):
                # A replica of another shape would not have these dimensions.
                if self._fits(relation, x.ndim):
                    yield Relation((Step("permute", numbers=back), *relation.steps), relation.names)

    def _fits(self, relation: Relation, ndim: int) -> bool:
        (name, *_) = relation.names
        for entry in self.index.entries:
            if entry.name == name and not entry.steps:
                return self.index.tensors[entry.number, min(entry.held)].ndim == ndim
        return False


def constant(x: torch.Tensor) -> bool:
    """Whether all elements are equal, as in a tensor of zeros."""
    bits = x.contiguous().view(torch.int64) if x.is_floating_point() else x
    flat = bits.reshape(-1)
    return not flat.numel() or bool((flat == flat[0]).all())


def _with_order(step: Step, order: tuple[int, ...]) -> Step:
    return replace(step, order=order)


def _orders(
    joined: Sequence[int],
    indices: Sequence[tuple[int, ...]],
    places: Sequence[set[Coordinate]],
) -> list[tuple[int, ...]] | None:
    """For each joined axis, which coordinate holds the first part, which the second.

    The order of the ranks is preferred where it holds, as where pieces are equal.
    """
    orders: list[tuple[int, ...]] = []
    for n, number in enumerate(joined):
        count = max(index[n] for index in indices) + 1
        order: list[int] = []
        for part in range(count):
            holding = [
                {place[number] for place in held}
                for index, held in zip(indices, places, strict=True)
                if index[n] == part
            ]
            possible = set.intersection(*holding) - set(order)
            if not possible:
                return None
            order.append(part if part in possible else min(possible))
        orders.append(tuple(order))
    return orders


def _alike(names: Sequence[str], others: Sequence[str]) -> str:
    """The name that resembles those of the other micro-batches most, such as pow_2 beside pow_1."""
    stems = {each.rstrip("0123456789_") for each in others}
    return min(names, key=lambda each: (each.rstrip("0123456789_") not in stems, len(each), each))
