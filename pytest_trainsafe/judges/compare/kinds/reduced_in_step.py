"""Finds the gradients that the optimizer reduces over ranks inside its own step.

Such an optimizer (a Muon that reduce-scatters, for example) receives each rank's own gradient, so
the ranks' main gradients are terms of a sum or a mean when the step begins.  An optimizer that
updates a range of each parameter (ZeRO) may do so too: its main gradients are ranges of the terms,
which the gradients of the rank's micro-batches add up to.  What the step makes of them shows in the
optimizer's states and in the updates, which are compared too.  Called by the compare judge.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import torch

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.align.merge import Merged, merge
from pytest_trainsafe.core.indices import LayoutError
from pytest_trainsafe.core.layout import Part, Partial
from pytest_trainsafe.core.rungs.arithmetic import Arithmetic
from pytest_trainsafe.core.rungs.table import rung_named
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.kinds.own_gradients import in_ranges, own_gradients, range_of
from pytest_trainsafe.judges.compare.patterns.partial_sum import names_axis
from pytest_trainsafe.trace.facts import Reduction
from pytest_trainsafe.trace.reader import Trace

#: How many rounding errors of the program's dtype two sums of a rank's few micro-batches may be
#: apart, in either order.
_SUMMED = 8

#: The kinds of gradients that an optimizer's step may reduce.
_GRADIENTS = frozenset({"main_grad", "unclipped_grad"})


@dataclass(frozen=True, slots=True)
class ReducedInStep:
    """A gradient as the step reduces it; `how` says how: "the mean over dp"."""

    merged: Merged
    how: str


def reduced_in_step(
    candidate: Trace, id: TensorId, merged: Merged, passes: Callable[[torch.Tensor], bool]
) -> ReducedInStep | None:
    """The gradient `id` after the reduction inside the optimizer's step.

    `merged` is what the ranks hold before it.  None if the ranks hold equal values, if the step
    reduces no tensor that may contain the gradient, or if neither the sum nor the mean of the
    ranks' values `passes`.  None too if the ranks' parameters differ after the step: it reduced
    other gradients of this size, and not this one.
    """
    if id.kind not in _GRADIENTS or any(f.check != "replicas" for f in merged.findings):
        return None
    terms = merged.parts
    if in_ranges(merged.parts):
        if merged.tensor is None or not _axes(candidate, 1) or passes(merged.tensor):
            return None
        terms = _own_ranges(candidate, id, merged)
    elif not merged.findings:
        return None
    if not terms or _differs_after_step(candidate, id):
        return None
    numel = max(part.tensor.numel() for part in terms)
    for axes in _axes(candidate, numel):
        if any(names_axis(part, axis) for part in terms for axis in axes):
            continue
        partial = tuple(Partial(axis) for axis in axes)
        parts = [msgspec.structs.replace(part, layout=part.layout + partial) for part in terms]
        shape = tuple(merged.tensor.shape) if merged.tensor is not None else None
        try:
            numbers = candidate.numbers
            total = merge(parts, candidate.sizes, shape=shape, where=id, numbers=numbers)
        except (LayoutError, IndexError):
            continue
        if total.tensor is None or total.findings:
            continue
        size = math.prod(candidate.sizes[axis] for axis in axes)
        for name, value in (("mean", numbers.divide(total.tensor, size)), ("sum", total.tensor)):
            if passes(value):
                how = f"the {name} over {' and '.join(axes)}"
                return ReducedInStep(Merged(value, [], merged.parts), how)
    return None


def _own_ranges(candidate: Trace, id: TensorId, merged: Merged) -> list[Part]:
    """Each rank's own gradient of the parameter of `id`.

    [] unless each range in `merged` has the values of its rank's own gradient.
    """
    sums = own_gradients(candidate, id, candidate.numbers.add)
    ranges = {part.rank: part for part in merged.parts}
    apart = _SUMMED * float(torch.finfo(rung_named(candidate.manifest.dtype).dtype).eps)
    for own in sums:
        values = range_of(own, ranges.get(own.rank))
        if values is not None and not _close(*values, apart, candidate.numbers):
            return []
    return sums


def _close(own: torch.Tensor, held: torch.Tensor, apart: float, numbers: Arithmetic) -> bool:
    """Whether a range that a rank holds has the values of its own gradient, but for rounding."""
    if own.shape != held.shape:
        return False
    distance = numbers.norm(numbers.subtract(own, held.to(own.dtype)))
    return not distance if numbers.exact else distance <= apart * numbers.norm(own)


def _differs_after_step(candidate: Trace, id: TensorId) -> bool:
    """Whether the ranks hold different values of a gradient's parameter after its step."""
    parameter = msgspec.structs.replace(id, kind="param")
    if not candidate.holders(parameter):
        return False
    return any(f.check == "replicas" for f in logical_tensor(candidate, parameter).findings)


def _axes(candidate: Trace, numel: int) -> list[tuple[str, ...]]:
    """The axes over which the optimizer's step reduces tensors of at least `numel` elements."""
    made = (each for rank in candidate.ranks for each in rank.events_of(Reduction))
    fitting = (each for each in made if each.in_step and each.of == "gradients")
    return list(
        dict.fromkeys(each.axes for each in fitting if each.numel is None or each.numel >= numel)
    )
