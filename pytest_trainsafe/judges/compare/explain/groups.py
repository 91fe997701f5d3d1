"""Names the axes of the mesh over which a collective acts, from the ranks of its group."""

from __future__ import annotations

import math
from collections.abc import Sequence

from pytest_trainsafe.core.point import Point


def over(point: Point, ranks: Sequence[int]) -> str:
    """The axes of a group in words; if it lacks some ranks of them, with the number that it has."""
    axes = point.axes_between(ranks)
    named = " and ".join(axes)
    whole = math.prod(point.sizes[axis] for axis in axes) == len(ranks)
    return named if whole or not axes else f"{len(ranks)} ranks of {named}"
