"""Finds gradients that each rank adds up in a narrow dtype, and then reduces in a wide one.

The sum over ranks, or a factor by which the gradient is clipped, then needs the wide dtype, so the
values alone do not show it.  But they are those of a sum that is rounded after each addition, to
the last bits of the wide dtype, and are not those of the exact sum.  Called by `narrowed`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import torch

from pytest_trainsafe.align.logical import logical_tensor
from pytest_trainsafe.align.merge import merge
from pytest_trainsafe.core.indices import LayoutError
from pytest_trainsafe.core.layout import Part, Partial
from pytest_trainsafe.core.rungs.floating import FLOATING
from pytest_trainsafe.core.tensor_id import TensorId
from pytest_trainsafe.judges.compare.kinds.own_gradients import (
    Add,
    in_ranges,
    own_gradients,
    range_of,
)
from pytest_trainsafe.trace.reader import Trace

#: How many rounding errors of float32 the gradient may be apart from the sum that it is taken for:
#: a reduction, an unscaling and a clip follow the sum.
_APART = 16 * float(torch.finfo(torch.float32).eps)


def adds_in(trace: Trace, id: TensorId, dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
    """Whether the gradient `id`, of logical `shape`, is a sum that ranks rounded to `dtype`.

    `dtype` is narrower than float32.  A common factor, such as that of a clip, does not matter.
    False if some rank adds up nothing in the step, or if the exact sum is as close.
    """

    def rounded(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        return (left + right).to(dtype).to(left.dtype)

    held = logical_tensor(trace, id, shape)
    if in_ranges(held.parts):
        compared = _ranges(trace, id, held.parts, rounded)
    else:
        sums = _total(trace, id, rounded, shape), _total(trace, id, torch.add, shape)
        compared = (held.whole, *sums)
    found, total, exact = compared
    if total is None or exact is None or found is None:
        return False
    # A sum of few, or of equal, terms may be exact in the narrow dtype.
    if _distance(total, exact) < float(torch.finfo(dtype).eps) / 64:
        return False
    return _distance(found, total) <= _APART < _distance(found, exact)


def _ranges(
    trace: Trace, id: TensorId, held: Sequence[Part], rounded: Add
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """What ranks hold before the step reduces it, and the sums of their own terms.

    The ranges of all ranks are joined; each is one of another rank's own sum.
    """
    by_rank = {part.rank: part for part in held}
    found: list[list[torch.Tensor]] = []
    for narrow, wide in zip(
        own_gradients(trace, id, rounded), own_gradients(trace, id, torch.add), strict=True
    ):
        one, other = (range_of(own, by_rank.get(own.rank)) for own in (narrow, wide))
        if one is not None and other is not None:
            found.append([one[1].to(torch.float64), one[0], other[0]])
    if not found:
        return None, None, None
    values, total, exact = (torch.cat(each) for each in zip(*found, strict=True))
    return values, total, exact


def _total(trace: Trace, id: TensorId, add: Add, shape: tuple[int, ...]) -> torch.Tensor | None:
    """The sum over all micro-batches of all ranks, where each rank adds up its own by `add`."""
    terms = own_gradients(trace, id, add)
    mesh = trace.sizes.mesh
    dealt = tuple(Partial(axis) for axis in trace.sizes if mesh.role(axis) == "dp")
    parts = [msgspec.structs.replace(part, layout=(*part.layout, *dealt)) for part in terms]
    if not parts:
        return None
    try:
        return merge(parts, trace.sizes, shape=shape, where=id, numbers=trace.numbers).whole
    except (LayoutError, IndexError):
        return None


def _distance(found: torch.Tensor, other: torch.Tensor) -> float:
    """How far a tensor is from the nearest multiple of another one, relative to its norm."""
    factor, size = FLOATING.ratio(found, other), FLOATING.norm(found)
    if factor is None or not size:
        return 0.0
    return FLOATING.norm(found - factor * other) / size
