"""The axes ep and edp, which together consist of the ranks of dp and cp.

The ranks with the same tp and pp coordinate are numbered with cp varying fastest, then dp, as in
Megatron-LM.  The experts are distributed over `ep` neighbouring ranks.  The ranks that hold the
same experts, whose numbers differ by multiples of `ep`, form edp.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch.distributed as dist

from pytest_trainsafe.core.point import Point
from pytest_trainsafe.reference_models.parallel.axes import Axes, Axis
from pytest_trainsafe.reference_models.parallel.techniques import Techniques

if TYPE_CHECKING:
    from pytest_trainsafe.record.context import Context


def axes_with_experts(ctx: Context, bug: str = "", techniques: Techniques | None = None) -> Axes:
    """Reads the axes of a model with experts from a context.

    Raises ValueError for an unknown bug or axis, and if ep does not divide dp * cp.
    """
    axes = Axes.of(ctx, bug, techniques, experts=True)
    if int(ctx.point.get("ep", 1)) == 1:
        return axes
    ep, edp = expert_axes(ctx.point, ctx.rank)
    return replace(axes, ep=ep, edp=edp)


def expert_axes(point: Point, rank: int) -> tuple[Axis, Axis]:
    """The axes ep and edp of a rank.  Must be called on every rank: it creates process groups."""
    parts = int(point.get("ep", 1))
    whole = point.size("dp") * point.size("cp")
    if whole % parts:
        raise ValueError(
            f"ep={parts} must divide dp*cp={whole}: experts are distributed over these ranks"
        )
    numbered: dict[tuple[int, int], list[int]] = {}
    for other in range(point.world_size):
        at = point.coordinates(other)  # cp varies faster than dp, so each list is in order
        numbered.setdefault((at["tp"], at["pp"]), []).append(other)
    shares, copies = [], []
    for ranks in numbered.values():
        shares += [ranks[first : first + parts] for first in range(0, whole, parts)]
        copies += [ranks[first::parts] for first in range(parts)]
    return _axis(shares, rank), _axis(copies, rank)


def _axis(groups: list[list[int]], rank: int) -> Axis:
    found = Axis()
    for ranks in groups:
        if len(ranks) == 1:
            continue
        group = dist.new_group(ranks)
        if rank in ranks:
            assert isinstance(group, dist.ProcessGroup)
            found = Axis(len(ranks), ranks.index(rank), group)
    return found
