"""The Point as a program sees it: it remembers which axes the program asked for.

An axis that leaves no trace in any layout (sp, zero, recompute) has no other witness that the
program knows of it at all.
"""

from __future__ import annotations

from pytest_trainsafe.core.point import AxisValue, Point


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

    @property
    def _plain(self) -> Point:
        return self._point

    @property
    def _name(self) -> str:
        return "ctx.point"
