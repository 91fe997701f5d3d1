"""What a tensor without a clean relation resembles: a multiple of a tensor of the ranks, or more.

A multiple is not clean, because it needs a division that the program does not have; but its factor
says what is wrong.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch

from pytest_trainsafe.arithmetic import Numbers, field, rational
from pytest_trainsafe.judges.refine.graphs.graph import Graph
from pytest_trainsafe.judges.refine.relations.relation import Relation, Step
from pytest_trainsafe.judges.refine.search.content import multiple
from pytest_trainsafe.judges.refine.search.cuts import cuts
from pytest_trainsafe.judges.refine.search.index import Index

#: The most pairs of tensors whose sum is tried.
_PAIRS = 2000
_COLLECTIVES = "_c10d_functional."


@dataclass(frozen=True)
class Nearest:
    """A tensor is `factor` times what a relation makes of the ranks' tensors."""

    factor: Fraction
    relation: Relation

    def __str__(self) -> str:
        return f"{self.factor} times the {self.relation}".replace("the replica of ", "")


def nearest(x: torch.Tensor, index: Index, numbers: Numbers) -> list[Nearest]:
    """The multiples that a sequential tensor is, the preferred first; x has no clean relation."""
    found = [*_whole(x, index), *_cut(x, index)]
    return found or list(itertools.islice(_pairs(x, index, numbers), 1))


def makers(found: Nearest, ranks: Sequence[Graph]) -> set[str]:
    """The operators by which the ranks make a relation's tensors; a collective only sends them."""
    operators = set()
    for graph in ranks:
        for name in found.relation.names:
            node = graph.by_name.get(name)
            while node is not None and node.operator.startswith(_COLLECTIVES) and node.inputs:
                node = graph.by_name[node.inputs[0]]
            if node is not None:
                operators.add(node.short)
    return operators


def _factors(x: torch.Tensor, index: Index) -> dict[int, dict[tuple[int, ...], Fraction]]:
    """The entries of which `x` is a rational multiple: the factors by coordinate."""
    mine = multiple(x)
    found: dict[int, dict[tuple[int, ...], Fraction]] = {}
    if mine is None:
        return found
    key, lead = mine
    for number, place, unit in index.multiples(key):
        factor = rational(field.multiply(lead, field.inverse(unit)))
        if factor:
            found.setdefault(number, {})[place] = factor
    return found


def _whole(x: torch.Tensor, index: Index) -> Iterator[Nearest]:
    found = _factors(x, index)
    for number in sorted(found, key=lambda each: len(index.entries[each].steps)):
        entry, factors = index.entries[number], found[number]
        if set(factors) == entry.held and len(set(factors.values())) == 1:
            yield Nearest(next(iter(factors.values())), Relation(entry.steps, (entry.name,)))


def _cut(x: torch.Tensor, index: Index) -> Iterator[Nearest]:
    axes = list(index.mesh.axes)
    for number, (axis, size) in enumerate(index.mesh.axes.items()):
        if size == 1 or x.numel() == 1:
            continue
        for step, pieces in cuts(x, axis, size):
            tables = [_factors(piece, index) for piece in pieces]
            for each in tables[0]:
                entry = index.entries[each]
                if axes[number] in entry.reduced or not all(each in table for table in tables):
                    continue
                factors = {
                    factor
                    for part, table in enumerate(tables)
                    for place, factor in table[each].items()
                    if place[number] == part
                }
                held = {place for part, table in enumerate(tables) for place in table[each]
                        if place[number] == part}  # fmt: skip
                if len(factors) == 1 and held == entry.held:
                    yield Nearest(factors.pop(), Relation((step, *entry.steps), (entry.name,)))


def _pairs(x: torch.Tensor, index: Index, numbers: Numbers) -> Iterator[Nearest]:
    """Multiples of the sum of two tensors of each rank, as of micro-batches."""
    mine = multiple(x)
    if mine is None:
        return
    held = [
        entry
        for entry in index.entries
        if not entry.steps
        and len(entry.held) == index.mesh.size
        and index.tensors[entry.number, min(entry.held)].numel() == x.numel()
        and index.tensors[entry.number, min(entry.held)].is_floating_point()
    ]
    for a, b in itertools.islice(itertools.combinations(held, 2), _PAIRS):
        factors: set[Fraction | None] = set()
        for place in a.held:
            total = numbers.add(
                index.tensors[a.number, place].reshape(-1),
                index.tensors[b.number, place].reshape(-1),
            )
            found = multiple(total)
            if found is None or found[0] != mine[0]:
                factors.add(None)
                break
            factors.add(rational(field.multiply(mine[1], field.inverse(found[1]))))
        if len(factors) == 1 and (factor := factors.pop()) and factor != 1:
            yield Nearest(factor, Relation((Step("sum"),), (a.name, b.name)))
