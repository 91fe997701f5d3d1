"""A Point: one value for each axis, which is one configuration of a parallel training run.

The sweep makes Points; launch, record and report use them.  Does not depend on torch.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from pytest_trainsafe.core.mesh import DEFAULT, ROLES, Mesh, OverMesh, coordinates_over, sizes_over
from pytest_trainsafe.errors import ArgumentError, UnknownAxisError

AxisValue = int | float | bool | str

#: The mesh axes of a program that declares no mesh, fastest-varying rank dimension first.
MESH_AXES = DEFAULT.fastest_first

#: The trivial values of axes without a size: their values at a Point that does not name them.
TRIVIAL: dict[str, AxisValue] = {
    "zero": 0,
    **dict.fromkeys(("sp", "recompute", "compile"), False),
}

#: The values of the axis `recompute` with which nothing is recomputed.
NO_RECOMPUTE: tuple[AxisValue, ...] = (False, "", "none")

#: Maximum length of a Point's id; a file name has at most 255.
_LONGEST_ID = 150


@dataclass(frozen=True, slots=True, repr=False)
class Point:
    """One value per axis, in the order in which the test declares them.

    An absent axis has its trivial value: 1 for the mesh axes, False for `sp`.  `mesh` is the
    program's mesh, which says which axes multiply into the world size and how ranks are numbered.
    """

    values: tuple[tuple[str, AxisValue], ...] = ()
    mesh: Mesh = DEFAULT

    @classmethod
    def of(
        cls,
        mapping: Mapping[str, AxisValue] | None = None,
        /,
        mesh: Mesh = DEFAULT,
        **axes: AxisValue,
    ) -> Point:
        """Builds a Point from a mapping and keywords: `Point.of(tp=2, sp=True)`."""
        return cls(tuple({**(mapping or {}), **axes}.items()), mesh)

    def __iter__(self) -> Iterator[tuple[str, AxisValue]]:
        return iter(self.values)

    def get(self, axis: str, default: AxisValue) -> AxisValue:
        """The value of an axis, or `default` if the Point does not name it."""
        return dict(self.values).get(axis, default)

    def size(self, axis: str) -> int:
        """The number of ranks along an axis; for "vpp", the value of this axis.

        `axis` is a mesh axis, an overlapping axis such as "ep", a role such as "dp", or "vpp".  An
        axis that the Point does not name has the size 1.  If several mesh axes share a role, the
        size of the role is the product of their sizes.  Raises ArgumentError for any other name,
        such as "dtype" or "sp".
        """
        if axis == "vpp":
            return int(self.get(axis, 1))
        if axis not in self.mesh.names:
            raise ArgumentError(
                f"{self._name}.size({axis!r}): this axis has no size; the axes with a size are "
                f"{', '.join(self._sized)}. For the value of any other axis, call "
                f"{self._name}.get({axis!r}, default)"
            )
        members = (axis,) if axis in self.mesh.overlaps else self.mesh.members(axis)
        return math.prod(int(self.get(member, 1)) for member in members)

    def __getattr__(self, axis: str) -> AxisValue:
        """The value of an axis as an attribute: `point.recompute`.

        An axis that the Point does not name has its trivial value.  Raises UnknownAxisError if
        neither the Point nor pytest-trainsafe has an axis of this name; `get` returns a default.
        """
        if axis.startswith("_") or axis in ("values", "mesh"):
            raise AttributeError(axis)
        named = dict(self._plain.values)
        if axis not in named and axis in (*self.mesh.names, "vpp"):
            return self.size(axis)
        if axis not in named and axis not in TRIVIAL:
            raise UnknownAxisError(
                f"{self._name} has no axis {axis!r}. The Point is {self._plain}; the other known "
                f"axes are {', '.join((*self._sized, *TRIVIAL))}. Call {self._name}.get({axis!r}, "
                "default) to get a default if the Point does not name the axis"
            )
        return self.get(axis, TRIVIAL.get(axis, 0))

    @property
    def _sized(self) -> tuple[str, ...]:
        """The axes and roles (such as dp) that have a size: those that count ranks, and `vpp`."""
        roles = (role for role in ROLES if role not in self.mesh.axes and self.mesh.members(role))
        return (*self.mesh.fastest_first, *roles, *self.mesh.overlaps, "vpp")

    @property
    def _plain(self) -> Point:
        """This Point itself; a subclass that records which axes are read returns a plain Point."""
        return self

    @property
    def _name(self) -> str:
        """The name of this Point in the caller's code, for error messages."""
        return "point"

    @property
    def sizes(self) -> OverMesh:
        """The size of every mesh axis."""
        return _sizes(self.mesh, self.values)

    @property
    def world_size(self) -> int:
        """Number of ranks: the product of the sizes of the mesh axes, by default dp*tp*cp*pp."""
        return math.prod(self.size(axis) for axis in self.mesh.axes)

    def coordinates(self, rank: int) -> OverMesh:
        """The position of a rank on every mesh axis."""
        assert 0 <= rank < self.world_size, (rank, self)
        return _coordinates(self.mesh, self._plain.values, rank)

    def axes_between(self, ranks: Iterable[int]) -> tuple[str, ...]:
        """The mesh axes along which some ranks differ, the fastest-varying one first."""
        places = [self.coordinates(rank) for rank in ranks]
        axes = self.mesh.fastest_first
        return tuple(axis for axis in axes if len({place[axis] for place in places}) > 1)

    def replace(self, **axes: AxisValue) -> Point:
        """This Point with some axes changed or added."""
        return Point.of(dict(self.values), mesh=self.mesh, **axes)

    def without(self, *axes: str) -> Point:
        """This Point with some axes reset to their trivial value."""
        left = tuple((axis, value) for axis, value in self.values if axis not in axes)
        return Point(left, self.mesh)

    @property
    def id(self) -> str:
        """A readable test id of `[a-z0-9-]` only: `tp2-cp1-sp-bfloat16`.

        Other characters cause trouble in shells, JUnit and pytest-xdist's scheduling groups.  A
        long id is cut and ends in a hash of the Point, because folders are named after it.
        """
        whole = "-".join(_word(axis, value) for axis, value in self.values) or "single"
        if len(whole) <= _LONGEST_ID:
            return whole
        digest = hashlib.sha256(str(self).encode()).hexdigest()[:12]
        return f"{whole[: _LONGEST_ID - 13]}-{digest}"

    def __repr__(self) -> str:
        return f"Point.of({', '.join(f'{axis}={value!r}' for axis, value in self.values)})"

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """The text that IPython and hypothesis print for a Point."""
        printer.text(repr(self))

    def __str__(self) -> str:
        return " ".join(f"{axis}={value}" for axis, value in self.values) or "a single device"


def _word(axis: str, value: AxisValue) -> str:
    if isinstance(value, bool):
        word = axis if value else f"no{axis}"
    elif isinstance(value, int):
        word = f"{axis}{value}"
    elif isinstance(value, float):
        # 0.01 and 0.1 would be one word without the point, 1e-05 and 1e+05 without the sign.
        word = f"{axis}{value}".replace(".", "p").replace("-", "m")
    else:
        word = value if axis == "dtype" else f"{axis}{value}"
    return re.sub(r"[^a-z0-9]", "", word.lower())


# A recorder asks for each tensor, and a Point has few ranks.
@lru_cache(maxsize=1024)
def _sizes(mesh: Mesh, values: tuple[tuple[str, AxisValue], ...]) -> OverMesh:
    return sizes_over(mesh, dict(values))


@lru_cache(maxsize=4096)
def _coordinates(mesh: Mesh, values: tuple[tuple[str, AxisValue], ...], rank: int) -> OverMesh:
    return coordinates_over(_sizes(mesh, values), rank)
