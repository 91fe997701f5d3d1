"""The Point as a program sees it: records which axes the program reads.

For an axis that affects no layout (sp, zero, recompute), reading it is the only evidence that the
program uses it.
"""

from __future__ import annotations

from pytest_trainsafe.core.point import MESH_AXES, AxisValue, Point
from pytest_trainsafe.record.clock import ProgramError

#: The values of axes that a Point does not name.
_ABSENT: dict[str, AxisValue] = {
    **dict.fromkeys((*MESH_AXES, "vpp", "ep"), 1),
    "zero": 0,
    **dict.fromkeys(("sp", "recompute", "compile"), False),
}

#: Axes with a size: they count ranks or parts of the model.
_SIZES = (*MESH_AXES, "ep", "vpp")


class AskedPoint(Point):
    """A Point whose `asked` holds the axes that were read; reading `values` counts as all."""

    __slots__ = ("_point", "asked")

    asked: set[str]
    _point: Point

    def __init__(self, point: Point) -> None:
        object.__setattr__(self, "_point", point)
        object.__setattr__(self, "asked", set())

    @property
    def values(self) -> tuple[tuple[str, AxisValue], ...]:
        """The axes and their values."""
        self.asked.update(axis for axis, _ in self._point.values)
        return self._point.values

    def get(self, axis: str, default: AxisValue) -> AxisValue:
        """The value of an axis, or `default` if the Point does not name it."""
        self.asked.add(axis)
        return self._point.get(axis, default)

    def size(self, axis: str) -> int:
        """The number of ranks along a mesh axis, or the value of `ep` or `vpp`; 1 by default."""
        if axis not in _SIZES:
            raise ProgramError(
                f"ctx.point.size({axis!r}): an axis with a size is one of {', '.join(_SIZES)}; "
                f"ctx.point.get({axis!r}, default) gives the value of any other"
            )
        return int(self.get(axis, 1))

    def __getattr__(self, axis: str) -> AxisValue:
        """The value of an axis as an attribute: `ctx.point.recompute`.

        A built-in axis that the Point does not name has its trivial value; any other axis needs
        `get` with a default.
        """
        if axis.startswith("_"):
            raise AttributeError(axis)
        named = dict(self._point.values)
        if axis in named or axis in _ABSENT:
            return self.get(axis, _ABSENT.get(axis, 0))
        raise AttributeError(
            f"ctx.point has no axis {axis!r}: the Point is {self._point}; use "
            f"ctx.point.get({axis!r}, default), which returns the default if it is not named"
        )
