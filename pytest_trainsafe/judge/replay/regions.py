"""Determines the region of a dropout mask: the axes over which the masked tensor is sharded.

There are two sources. The first compares sizes: a rank draws a mask for its own shard, and the
reference draws one for the whole tensor. The ratio of these sizes is the product of the sizes of
the sharding axes. The second is the layout of the module's output, if the module returns the tensor
that it masked.
"""

from __future__ import annotations

import itertools
import math

from pytest_trainsafe.core.layout import Shard, ZigZag
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judge.replay.draws import Draw, Draws, Site
from pytest_trainsafe.trace.rng.events import DrawEvent

#: Mesh axes by their own names, so that an axis may have any role and a role several axes.
Region = frozenset[str]


class Regions:
    """Finds the regions of a candidate's draws, from its layouts and its reference's draws."""

    def __init__(self, candidate: Draws, reference: Draws | None) -> None:
        sizes = candidate.trace.sizes
        roles = ("tp", "cp", "dp") if shares_microbatches(candidate) else ("tp", "cp")
        self._axes = [axis for axis in sizes.mesh.expand(roles) if sizes[axis] > 1]
        self._sizes = sizes
        self._whole: dict[Site, DrawEvent] = {}
        for rank in reference.by_rank if reference is not None else ():
            self._whole |= {draw.site: draw.event for draw in rank if draw.event.phase == "forward"}

    def whole(self, draw: Draw) -> DrawEvent | None:
        """The reference's draw at the same place as a draw of the candidate, or None."""
        return self._whole.get(draw.site)

    def of(self, draw: Draw) -> Region | None:
        """The mesh axes over which the masked tensor is sharded.

        None if they are unknown, or if layout and sizes disagree.
        """
        layout = self._by_layout(draw)
        whole = self.whole(draw)
        if whole is None or whole.operator != draw.event.operator:
            return layout
        possible = self._by_size(draw.event.shape, whole.shape)
        if layout is not None:
            return layout if layout in possible else None
        return possible[0] if len(possible) == 1 else None

    def _by_size(self, part: tuple[int, ...], whole: tuple[int, ...]) -> list[Region]:
        """The sets of axes whose sizes explain the ratio of the whole tensor to the shard."""
        if len(part) != len(whole) or not math.prod(part) or math.prod(whole) % math.prod(part):
            return []
        times = math.prod(whole) // math.prod(part)
        subsets = itertools.chain.from_iterable(
            itertools.combinations(self._axes, count) for count in range(len(self._axes) + 1)
        )
        return [
            frozenset(subset)
            for subset in subsets
            if math.prod(self._sizes[axis] for axis in subset) == times
        ]

    def _by_layout(self, draw: Draw) -> Region | None:
        step, microbatch, module, number = draw.site
        for call in dict.fromkeys((number, 0)):
            id = TensorId(step, microbatch, "activation", module, "output", call)
            output = draw.rank.tensors.get(id)
            if output is None or output.shape != draw.event.shape:
                continue
            if output.layout_source == "default":
                return None
            if not all(isinstance(placement, Shard | ZigZag) for placement in output.layout):
                return None
            named = (p.axis for p in output.layout if isinstance(p, Shard | ZigZag))
            axes = self._sizes.mesh.expand(named)
            return frozenset(axis for axis in axes if self._sizes[axis] > 1)
        return None


def shares_microbatches(draws: Draws) -> bool:
    """Whether dp ranks compute parts of the same micro-batches, or mark no micro-batches."""
    taken: dict[int, set[int | None]] = {}
    for rank in draws.trace.ranks:
        numbers: set[int | None] = {event.microbatch for event in rank.inputs}
        if rank.note("level"):
            numbers = {None}
        taken.setdefault(rank.coordinates["dp"], set()).update(numbers)
    sets = list(taken.values())
    return any(left & right for left, right in itertools.combinations(sets, 2))
