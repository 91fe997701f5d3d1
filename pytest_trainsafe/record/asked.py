"""The Point as a program sees it: it remembers which axes the program asked for.

An axis that leaves no trace in any layout (sp, zero, recompute) has no other witness that the
program knows of it at all.
"""

from __future__ import annotations

from pytest_trainsafe.core.mesh import ROLES, OverMesh
from pytest_trainsafe.core.point import AxisValue, Point
from pytest_trainsafe.record.clock import ProgramError

#: The value of an axis that a Point does not name, beside those that have a size.
_ABSENT: dict[str, AxisValue] = {
    "zero": 0,
    **dict.fromkeys(("sp", "recompute", "compile"), False),
}


class AskedPoint(Point):
    """A Point whose `asked` holds the axes that were looked up; looking at all asks for all."""

    __slots__ = ("_point", "asked")

    asked: set[str]
    _point: Point

    def __init__(self, point: Point) -> None:
        object.__setattr__(self, "_point", point)
        object.__setattr__(self, "mesh", point.mesh)
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
        """How many ranks stand along an axis or a role, or the value of `vpp`; 1 by default."""
        self.asked.add(axis)
        if axis == "vpp":
            return int(self.get(axis, 1))
        if axis not in self.mesh.names:
            raise ProgramError(
                f"ctx.point.size({axis!r}): an axis with a size is one of "
                f"{', '.join(self._sized)}; "
                f"ctx.point.get({axis!r}, default) gives the value of any other"
            )
        return self._point.size(axis)

    @property
    def sizes(self) -> OverMesh:
        """The size of every mesh axis."""
        return self._point.sizes

    @property
    def _sized(self) -> tuple[str, ...]:
        """Axes that count ranks or parts of the model, of which a program may ask the size."""
        roles = (role for role in ROLES if role not in self.mesh.axes and self.mesh.members(role))
        return (*self.mesh.fastest_first, *roles, *self.mesh.overlaps, "vpp")

    def __getattr__(self, axis: str) -> AxisValue:
        """The value of an axis as an attribute: `ctx.point.recompute`.

        An axis that the Point does not name has its trivial value; one that pytest-trainsafe does
        not know needs `get`, which takes a default.
        """
        if axis.startswith("_"):
            raise AttributeError(axis)
        named = dict(self._point.values)
        if axis not in named and axis in (*self.mesh.names, "vpp"):
            return self.size(axis)
        if axis in named or axis in _ABSENT:
            return self.get(axis, _ABSENT.get(axis, 0))
        raise AttributeError(
            f"ctx.point has no axis {axis!r}: the Point is {self._point}; use "
            f"ctx.point.get({axis!r}, default), which gives the default where it is not named"
        )


class AskedCoordinates(OverMesh):
    """Where a rank stands.  An overlapping axis, such as ep, is asked for when it is looked up."""

    __slots__ = ("_point",)

    def __init__(self, point: AskedPoint, rank: int) -> None:
        at = point.coordinates(rank)
        super().__init__(at.mesh, at, at.derived)
        self._point = point

    def __missing__(self, axis: str) -> int:
        if axis not in self.derived:
            known = ", ".join(dict.fromkeys((*self, *self.derived)))
            raise ProgramError(
                f"ctx.coordinates[{axis!r}]: there is no such axis at this Point; use one of "
                f"{known}"
            )
        self._point.asked.add(axis)
        return super().__missing__(axis)
