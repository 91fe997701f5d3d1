"""The Point as a program sees it: it remembers which axes the program asked for.

An axis that leaves no trace in any layout (sp, zero, recompute) has no other witness that the
program knows of it at all.
"""

from __future__ import annotations

from pytest_trainsafe.core.point import MESH_AXES, AxisValue, Point
from pytest_trainsafe.record.clock import ProgramError

#: The value of an axis that a Point does not name.
_ABSENT: dict[str, AxisValue] = {
    **dict.fromkeys((*MESH_AXES, "vpp", "ep"), 1),
    "zero": 0,
    **dict.fromkeys(("sp", "recompute", "compile"), False),
}

#: Axes that count ranks or parts of the model, of which a program may ask the size.
_SIZES = (*MESH_AXES, "ep", "vpp")


class AskedPoint(Point):
    """A Point whose `asked` holds the axes that were looked up; looking at all asks for all."""

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
        """The value of an axis, or `default` where the Point does not name it."""
        self.asked.add(axis)
        return self._point.get(axis, default)

    def size(self, axis: str) -> int:
        """How many ranks stand along a mesh axis, or the value of `ep` or `vpp`; 1 by default."""
        if axis not in _SIZES:
            raise ProgramError(
                f"ctx.point.size({axis!r}): an axis with a size is one of {', '.join(_SIZES)}; "
                f"ctx.point.get({axis!r}, default) gives the value of any other"
            )
        return int(self.get(axis, 1))

    def __getattr__(self, axis: str) -> AxisValue:
        """The value of an axis as an attribute: `ctx.point.recompute`.

        An axis that the Point does not name has its trivial value; one that pytest-trainsafe does
        not know needs `get`, which takes a default.
        """
        if axis.startswith("_"):
            raise AttributeError(axis)
        named = dict(self._point.values)
        if axis in named or axis in _ABSENT:
            return self.get(axis, _ABSENT.get(axis, 0))
        raise AttributeError(
            f"ctx.point has no axis {axis!r}: the Point is {self._point}; use "
            f"ctx.point.get({axis!r}, default), which gives the default where it is not named"
        )
