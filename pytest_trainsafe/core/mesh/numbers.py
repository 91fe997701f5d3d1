"""Sizes and coordinates on a mesh: the coordinates of a rank, and the ranks along an axis."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from pytest_trainsafe.core.mesh.declaration import DEFAULT, ROLES, Mesh


class OverMesh(dict[str, int]):
    """A number for each mesh axis: the sizes of the axes, or a rank's coordinates along them.

    Iteration yields the mesh axes only, the axis that varies fastest first.  A lookup also accepts
    a role (dp, cp, tp or pp) or an overlapping axis.  For a role, it returns the number of ranks
    along all mesh axes of the role together, or a rank's number among those ranks; if no mesh axis
    has the role, 1 or 0.  For an overlapping axis (an axis that reuses the ranks of mesh axes), it
    returns the size of the axis, or the rank's coordinate along it.
    """

    __slots__ = ("derived", "mesh")

    def __init__(self, mesh: Mesh, numbers: Mapping[str, int], derived: Mapping[str, int]) -> None:
        super().__init__(numbers)
        self.mesh = mesh
        self.derived = dict(derived)

    def __missing__(self, axis: str) -> int:
        return self.derived[axis]


def mesh_of(numbers: Mapping[str, int]) -> Mesh:
    """The mesh that sizes or coordinates belong to; DEFAULT if they are a plain mapping."""
    return numbers.mesh if isinstance(numbers, OverMesh) else DEFAULT


def sizes_over(mesh: Mesh, values: Mapping[str, object]) -> OverMesh:
    """The size of every mesh axis, from the values of axes; 1 for an axis without a value."""
    sizes = {axis: _size(values, axis) for axis in mesh.fastest_first}
    derived = {role: math.prod(sizes[axis] for axis in mesh.members(role)) for role in ROLES}
    return OverMesh(mesh, sizes, derived | {axis: _size(values, axis) for axis in mesh.overlaps})


def coordinates_over(sizes: OverMesh, rank: int) -> OverMesh:
    """A rank's coordinate on every mesh axis, every role and every overlapping axis.

    The coordinate on a role is the rank's number when ranks are counted along all mesh axes that
    have the role, the last varying fastest.  The coordinate on an overlapping axis is the rank's
    number along the mesh axes that the axis overlaps, modulo the size of the axis.  If this size
    does not divide the number of ranks along those mesh axes, there is no such coordinate.
    """
    at, rest = dict[str, int](), rank
    for axis in sizes.mesh.fastest_first:
        rest, at[axis] = divmod(rest, sizes[axis])
    return _coordinates(at, sizes)


def _coordinates(at: Mapping[str, int], sizes: OverMesh) -> OverMesh:
    mesh = sizes.mesh
    derived = {role: number_over(mesh.members(role), at, sizes) for role in ROLES}
    for axis, over in mesh.overlaps.items():
        if math.prod(sizes[name] for name in over) % sizes[axis] == 0:
            derived[axis] = number_over(over, at, sizes) % sizes[axis]
    return OverMesh(mesh, at, derived)


def ranks_along(sizes: OverMesh, axis: str) -> list[list[int]]:
    """All sets of ranks that differ only in their coordinate along an axis, sorted by it.

    Along an overlapping axis of size n, a set consists of n neighbours along the mesh axes that
    the axis overlaps.
    """
    over = sizes.mesh.members(axis)
    lines: dict[tuple[object, ...], list[tuple[int, int]]] = {}
    for rank in range(math.prod(sizes.values())):
        at = coordinates_over(sizes, rank)
        number = number_over(over, at, sizes)
        block = number // sizes[axis] if axis in sizes.mesh.overlaps else 0
        lines.setdefault((*elsewhere(at, over), block), []).append((number, rank))
    return [[rank for _, rank in sorted(line)] for line in lines.values()]


def moved(
    at: Mapping[str, int], sizes: Mapping[str, int], axis: str, number: int
) -> Mapping[str, int]:
    """The coordinates `at` with the coordinate along `axis` set to `number`.

    `axis` is a mesh axis, or a role such as dp.  A role stands for all mesh axes that have it.
    """
    there, rest = dict(at), number
    for name in reversed(mesh_of(sizes).members(axis)):
        rest, there[name] = divmod(rest, sizes[name])
    return _coordinates(there, sizes) if isinstance(sizes, OverMesh) else there


def rank_at(at: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    """The rank with the coordinates `at`; a missing coordinate counts as 0, a missing size as 1."""
    rank, stride = 0, 1
    for axis in mesh_of(sizes).fastest_first:
        rank += at.get(axis, 0) * stride
        stride *= sizes.get(axis, 1)
    return rank


def elsewhere(at: Mapping[str, int], axes: Iterable[str]) -> tuple[tuple[str, int], ...]:
    """A rank's coordinates on each mesh axis not in `axes` (mesh axes, or roles such as dp)."""
    left_out = mesh_of(at).expand(axes)
    return tuple((axis, number) for axis, number in at.items() if axis not in left_out)


def number_over(axes: Sequence[str], at: Mapping[str, int], sizes: Mapping[str, int]) -> int:
    """The number of a rank when ranks are counted along `axes`, the last varying fastest."""
    number = 0
    for axis in axes:
        number = number * sizes[axis] + at[axis]
    return number


def _size(values: Mapping[str, object], axis: str) -> int:
    value = values.get(axis, 1)
    assert isinstance(value, int), (axis, value)
    return int(value)
