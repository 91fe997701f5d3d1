"""Determines the region of a dropout mask: the axes over which the masked tensor is sharded.

There are two sources. The first compares sizes: a rank draws a mask for its own shard, and the
reference draws one for the whole tensor. The ratio of these sizes is the product of the sizes of
the sharding axes. The second is the layout of the module's output, if the module returns the tensor
that it masked.

If the program marks whole steps only (`ctx.watch(level="step")`), its forwards have no counterparts
in the reference, which may take the samples of a step in other batches. The first source then
compares how many numbers a module draws in a step, and the second does not exist.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from pytest_trainsafe.core.layout import Split
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.replay.rng.draws import Draw, Draws, Site
from pytest_trainsafe.trace.rng.events import DrawEvent

#: Mesh axes by their own names, so that an axis may have any role and a role several axes.
Region = frozenset[str]

#: The masks that a rank draws, by step, module and operator.
_Steps = dict[tuple[int, str, str], list[Draw]]


class Regions:
    """Finds the regions of a candidate's draws, from its layouts and its reference's draws."""

    def __init__(
        self, candidate: Draws, reference: Draws | None, *, compared: bool = False
    ) -> None:
        #: Whether the test compares the candidate's tensors with the reference's.
        self.compared = compared
        sizes = candidate.trace.sizes
        roles = ("tp", "cp", "dp") if shares_microbatches(candidate) else ("tp", "cp")
        self._axes = [axis for axis in sizes.mesh.expand(roles) if sizes[axis] > 1]
        self._sizes = sizes
        self._whole: dict[Site, DrawEvent] = {}
        self._functions: dict[Site, DrawEvent] = {}
        for drew in reference.by_rank if reference is not None else ():
            self._whole |= {draw.site: draw.event for draw in drew if draw.event.phase == "forward"}
            self._functions |= {draw.site: draw.event for draw in drew if draw.is_function_mask}
        #: Whether the candidate marks whole steps only.
        self.whole_steps = marks_whole_steps(candidate)
        self._steps: list[_Steps] = []
        self._reference_steps: _Steps = {}
        if self.whole_steps:
            self._steps = [_grouped(candidate.masks(rank.rank)) for rank in candidate.trace.ranks]
            if reference is not None:
                for rank in reference.trace.ranks:
                    self._reference_steps |= _grouped(reference.masks(rank.rank))

    def whole(self, draw: Draw) -> DrawEvent | None:
        """The reference's draw at the same place as a draw of the candidate, or None."""
        places = self._functions if draw.is_function_mask else self._whole
        return places.get(draw.site)

    def of(self, draw: Draw) -> Region | None:
        """The mesh axes over which the masked tensor is sharded.

        None if they are unknown, or if layout and sizes disagree.
        """
        allowed = self._allowed(draw)
        return allowed[0] if len(allowed) == 1 else None

    def is_cut(self, draw: Draw, axes: Region) -> bool | None:
        """Whether the masked tensor is sharded over one of `axes`; None if this is unknown."""
        answers = {bool(region & axes) for region in self._allowed(draw)}
        return answers.pop() if len(answers) == 1 else None

    def repeats_in_step(self, draw: Draw) -> bool:
        """Whether the module of `draw` draws the same numbers several times in the step.

        In the reference, or on the rank of the draw. The program must mark whole steps only.
        """
        key = _key(draw)
        for drawn in (self._reference_steps.get(key, []), self._steps[draw.rank.rank].get(key, [])):
            if len({(each.event.generator, each.event.before) for each in drawn}) < len(drawn):
                return True
        return False

    def _allowed(self, draw: Draw) -> list[Region]:
        """The regions that layout and sizes allow; none if nothing is known or they disagree."""
        layout, possible = self._by_layout(draw), self._possible(draw)
        if layout is None:
            return possible or []
        return [layout] if possible is None or layout in possible else []

    def _possible(self, draw: Draw) -> list[Region] | None:
        """The regions that sizes allow; None if the reference has no such draw."""
        whole = self.whole(draw)
        if whole is not None and whole.operator != draw.event.operator:
            whole = None
        if self.whole_steps:
            return self._by_step(draw, whole)
        return None if whole is None else self._by_size(draw.event.shape, whole.shape)

    def _by_step(self, draw: Draw, whole: DrawEvent | None) -> list[Region] | None:
        """The regions that explain how many numbers the module draws in the step."""
        key = _key(draw)
        if key not in self._reference_steps:
            return None
        mine, its = self._steps[draw.rank.rank][key], self._reference_steps[key]
        possible = self._by_ratio(_numbers(mine), _numbers(its))
        if len(possible) > 1 and whole is not None and whole.shape == draw.event.shape:
            # tp and cp cut every tensor, but dp may cut the number of tensors.
            dp = {*self._sizes.mesh.members("dp")}
            possible = [region for region in possible if region <= dp]
        return possible

    def _by_size(self, part: tuple[int, ...], whole: tuple[int, ...]) -> list[Region]:
        """The regions that explain the ratio of the whole tensor to the shard."""
        if len(part) != len(whole):
            return []
        return self._by_ratio(math.prod(part), math.prod(whole))

    def _by_ratio(self, part: int, whole: int) -> list[Region]:
        """The sets of axes the product of whose sizes is `whole` divided by `part`."""
        if not part or whole % part:
            return []
        subsets = itertools.chain.from_iterable(
            itertools.combinations(self._axes, count) for count in range(len(self._axes) + 1)
        )
        return [
            frozenset(subset)
            for subset in subsets
            if math.prod(self._sizes[axis] for axis in subset) == whole // part
        ]

    def _by_layout(self, draw: Draw) -> Region | None:
        if draw.event.module is None:
            return None
        step, microbatch, module, number = draw.site
        for call in dict.fromkeys((number, 0)):
            id = TensorId(step, microbatch, "activation", module, "output", call)
            output = draw.rank.tensors.get(id)
            if output is None or output.shape != draw.event.shape:
                continue
            if output.layout_source == "default":
                return None
            if not all(isinstance(placement, Split) for placement in output.layout):
                return None
            named = (p.axis for p in output.layout if isinstance(p, Split))
            axes = self._sizes.mesh.expand(named)
            return frozenset(axis for axis in axes if self._sizes[axis] > 1)
        return None


def _grouped(masks: Iterable[Draw]) -> _Steps:
    steps: _Steps = {}
    for draw in masks:
        steps.setdefault(_key(draw), []).append(draw)
    return steps


def _key(draw: Draw) -> tuple[int, str, str]:
    return draw.event.step, draw.event.module or "", draw.event.operator


def _numbers(drawn: Iterable[Draw]) -> int:
    return sum(math.prod(draw.event.shape) for draw in drawn)


def marks_whole_steps(draws: Draws) -> bool:
    """Whether the program marks whole steps and no micro-batches (`ctx.watch(level="step")`)."""
    return any(rank.note("level") for rank in draws.trace.ranks)


def shares_microbatches(draws: Draws) -> bool:
    """Whether dp ranks compute parts of the same micro-batches, or mark no micro-batches."""
    if marks_whole_steps(draws):
        return draws.trace.sizes["dp"] > 1
    taken: dict[int, set[int | None]] = {}
    for rank in draws.trace.ranks:
        numbers: set[int | None] = {event.microbatch for event in rank.inputs}
        taken.setdefault(rank.coordinates["dp"], set()).update(numbers)
    sets = list(taken.values())
    return any(left & right for left, right in itertools.combinations(sets, 2))
