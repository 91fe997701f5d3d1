"""The Point and the coordinates as a program sees them; they record which axes it reads.

For an axis that affects no layout (sp, zero, recompute), reading it is the only evidence that the
program uses it.
"""

from __future__ import annotations

from pytest_trainsafe.core.mesh import OverMesh
from pytest_trainsafe.core.point import AxisValue, Point
from pytest_trainsafe.core.usage import nearest
from pytest_trainsafe.record.clock import ProgramError


class TrackedPoint(Point):
    """A Point that adds each axis that is read to `axes_read`; reading `values` reads all axes."""

    __slots__ = ("_point", "axes_read")

    axes_read: set[str]
    _point: Point

    def __init__(self, point: Point) -> None:
        object.__setattr__(self, "_point", point)
        object.__setattr__(self, "mesh", point.mesh)
        object.__setattr__(self, "axes_read", set())

    @property
    def values(self) -> tuple[tuple[str, AxisValue], ...]:
        """The axes and their values."""
        self.axes_read.update(axis for axis, _ in self._point.values)
        return self._point.values

    def get(self, axis: str, default: AxisValue) -> AxisValue:
        """The value of an axis, or `default` if the Point does not name it."""
        self.axes_read.add(axis)
        return self._point.get(axis, default)

    def size(self, axis: str) -> int:
        """The number of ranks along a mesh axis, or the value of `vpp`; 1 by default.

        Several mesh axes may have the same role in the training, such as "dp", data parallelism.
        `axis` may also be the name of a role; the result is then the product of the sizes of the
        axes with this role.  Raises ArgumentError for an axis that has no size.
        """
        self.axes_read.add(axis)
        return self._point.size(axis) if axis in self.mesh.names else super().size(axis)

    @property
    def sizes(self) -> OverMesh:
        """The size of every mesh axis."""
        return self._point.sizes

    @property
    def _plain(self) -> Point:
        return self._point

    @property
    def _name(self) -> str:
        return "ctx.point"


class TrackedCoordinates(OverMesh):
    """The coordinates of a rank by axis.

    Looking up an axis that overlaps others, such as ep, is recorded in the Point's `axes_read`.
    """

    __slots__ = ("_point",)

    def __init__(self, point: TrackedPoint, rank: int) -> None:
        at = point.coordinates(rank)
        super().__init__(at.mesh, at, at.derived)
        self._point = point

    def __missing__(self, axis: str) -> int:
        if axis not in self.derived:
            known = dict.fromkeys((*self, *self.derived))
            raise ProgramError(
                f"ctx.coordinates[{axis!r}]: there is no such axis at this Point; use one of "
                f"{', '.join(known)}{nearest(axis, known)}"
            )
        self._point.axes_read.add(axis)
        return super().__missing__(axis)
