"""Finds the logical shape of sharded parameters from the lengths of all their shards.

One shard does not show it: 11 rows are cut into 6 and 5, and 12 rows into 6 and 6.  So ranks tell
each other the shapes that they hold, through the store of torch.distributed and not by a
collective, which would be one of the program's own in every record of them.  Called by
`ctx.initialize`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping

import torch.distributed as dist

from pytest_trainsafe.compat.distributed.process_groups import default_store
from pytest_trainsafe.core.indices import local_shape, logical_shape, scale_shape, split_flat
from pytest_trainsafe.core.layout import Layout, Sizes, Slices, Split
from pytest_trainsafe.core.mesh import OverMesh, coordinates_over, elsewhere, rank_at
from pytest_trainsafe.record.clock import ProgramError

#: The layout and the local shape of each parameter, by name.
Held = Mapping[str, tuple[Layout, tuple[int, ...]]]

#: By parameter name, the local shape; of every rank that is asked for, by its number.
Shapes = Mapping[str, tuple[int, ...]]
Exchange = Callable[[Shapes, frozenset[int]], Mapping[int, Shapes]]


class StoreExchange:
    """Exchanges shapes with other ranks, which must call it as often as this rank."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._calls = 0

    def __call__(self, own: Shapes, ranks: frozenset[int]) -> Mapping[int, Shapes]:
        """The shapes of `ranks`; none if the program has not started torch.distributed."""
        if not dist.is_initialized():
            return {}
        store = default_store()
        if store is None:
            return {}
        self._calls += 1
        key = f"pytest-trainsafe/shards/{self._calls}"
        store.set(f"{key}/{self._rank}", json.dumps(own))
        found = {rank: json.loads(store.get(f"{key}/{rank}")) for rank in sorted(ranks)}
        return {rank: {n: tuple(s) for n, s in shapes.items()} for rank, shapes in found.items()}


def logical_shapes(
    held: Held, coordinates: Mapping[str, int], sizes: OverMesh, exchange: Exchange | None
) -> dict[str, tuple[int, ...]]:
    """The logical shape of each parameter that this rank, at `coordinates`, holds a part of.

    Shards of unequal lengths are cut as `torch.chunk` and DTensor cut them.  Raises ProgramError if
    the ranks hold other lengths.
    """
    even = {name: scale_shape(shape, layout, sizes) for name, (layout, shape) in held.items()}
    cut = {name: _axes(layout, sizes) for name, (layout, _) in held.items()}
    along = {name: _along(axes, coordinates, sizes) for name, axes in cut.items() if axes}
    if exchange is None or not along:
        return even
    own = {name: held[name][1] for name in along}
    others = exchange(own, frozenset[int]().union(*along.values()))
    found = dict(even)
    for name, ranks in along.items():
        shapes = {rank: others[rank][name] for rank in ranks if name in others.get(rank, {})}
        if {*shapes.values()} - {own[name]}:
            found[name] = _uneven(name, held[name], shapes, coordinates, sizes)
    return found


def _axes(layout: Layout, sizes: Sizes) -> tuple[str, ...]:
    """The axes that cut a parameter into shards whose lengths do not show its logical shape."""
    outer, flat = split_flat(layout)
    if flat is not None or any(isinstance(p, Slices) for p in outer):
        return ()
    shards = [p for p in outer if isinstance(p, Split) and sizes[p.axis] > 1]
    return tuple(dict.fromkeys(p.axis for p in shards))


def _along(axes: tuple[str, ...], coordinates: Mapping[str, int], sizes: OverMesh) -> list[int]:
    """The other ranks that hold the same parameter's shards: they differ only along `axes`."""
    mine, here = rank_at(coordinates, sizes), elsewhere(coordinates, axes)
    every = (rank for rank in range(math.prod(sizes.values())) if rank != mine)
    return [rank for rank in every if elsewhere(coordinates_over(sizes, rank), axes) == here]


def _uneven(
    name: str,
    held: tuple[Layout, tuple[int, ...]],
    others: Mapping[int, tuple[int, ...]],
    coordinates: Mapping[str, int],
    sizes: OverMesh,
) -> tuple[int, ...]:
    """The logical shape of a parameter of which this rank and `others` hold unequal shards."""
    layout, own = held
    parts = [(rank_at(coordinates, sizes), coordinates, own)]
    parts += [(rank, coordinates_over(sizes, rank), shape) for rank, shape in others.items()]
    parts.sort(key=lambda part: part[0])
    whole = logical_shape([(layout, at, shape) for _, at, shape in parts], sizes)
    due = [local_shape(layout, at, sizes, whole) for _, at, _ in parts]
    if due != [shape for _, _, shape in parts]:
        ranks = ", ".join(str(rank) for rank, _, _ in parts)
        raise ProgramError(
            f"ctx.initialize was given {name} with the shapes "
            f"{', '.join(str(list(shape)) for _, _, shape in parts)} on ranks {ranks}; a tensor of "
            f"shape {list(whole)} is cut into {', '.join(str(list(shape)) for shape in due)}, as "
            "torch.chunk cuts it. Cut it like this, or use a size that the number of ranks divides"
        )
    return whole
