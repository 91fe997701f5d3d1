"""A Point: one value per axis, one configuration of a parallel training run.

Made by the sweep, carried through launch, record and report.  Knows nothing of torch.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from pytest_trainsafe.core.mesh import DEFAULT, Mesh, OverMesh, coordinates_over, sizes_over

AxisValue = int | bool | str

#: The mesh axes of a program that declares no mesh, fastest-varying rank dimension first.
MESH_AXES = DEFAULT.fastest_first

#: The most characters of a Point's id; the name of a file has 255 at most.
_LONGEST_ID = 150


@dataclass(frozen=True, slots=True)
class Point:
    """One value per axis, in the order the test declared them.

    Axes that are absent have their trivial value: 1 for the mesh axes, False for `sp`.  `mesh` is
    the program's: which axes multiply, and how ranks are numbered.
    """

    values: tuple[tuple[str, AxisValue], ...] = ()
    mesh: Mesh = field(default=DEFAULT, repr=False)

    @classmethod
    def of(
        cls,
        mapping: Mapping[str, AxisValue] | None = None,
        /,
        mesh: Mesh = DEFAULT,
        **axes: AxisValue,
    ) -> Point:
        """Build a Point from a mapping and keywords: `Point.of(tp=2, sp=True)`."""
        return cls(tuple({**(mapping or {}), **axes}.items()), mesh)

    def __iter__(self) -> Iterator[tuple[str, AxisValue]]:
        return iter(self.values)

    def get(self, axis: str, default: AxisValue) -> AxisValue:
        """The value of an axis, or `default` where the Point does not name it."""
        return dict(self.values).get(axis, default)

    def size(self, axis: str) -> int:
        """How many ranks stand along a mesh axis (1 where the Point does not name it).

        Of a role that several mesh axes share, such as "dp", the product of their sizes.
        """
        assert axis in self.mesh.names, axis
        members = (axis,) if axis in self.mesh.overlaps else self.mesh.members(axis)
        return math.prod(int(self.get(member, 1)) for member in members)

    @property
    def sizes(self) -> OverMesh:
        """The size of every mesh axis."""
        return sizes_over(self.mesh, dict(self.values))

    @property
    def world_size(self) -> int:
        """Number of ranks: the product of the sizes of the mesh axes, by default dp*tp*cp*pp."""
        return math.prod(self.size(axis) for axis in self.mesh.axes)

    def coordinates(self, rank: int) -> OverMesh:
        """Where a rank stands on every mesh axis."""
        assert 0 <= rank < self.world_size, (rank, self)
        return coordinates_over(self.sizes, rank)

    def replace(self, **axes: AxisValue) -> Point:
        """This Point with some axes changed or added."""
        return Point.of(dict(self.values), mesh=self.mesh, **axes)

    def without(self, *axes: str) -> Point:
        """This Point with some axes at their trivial value."""
        left = tuple((axis, value) for axis, value in self.values if axis not in axes)
        return Point(left, self.mesh)

    @property
    def id(self) -> str:
        """A readable test id of `[a-z0-9-]` only: `tp2-cp1-sp-bfloat16`.

        Other characters upset shells, JUnit and pytest-xdist's scheduling groups.  A long one is
        cut, and ends in a hash of the Point: folders are named by it.
        """
        whole = "-".join(_word(axis, value) for axis, value in self.values) or "single"
        if len(whole) <= _LONGEST_ID:
            return whole
        digest = hashlib.sha256(str(self).encode()).hexdigest()[:12]
        return f"{whole[: _LONGEST_ID - 13]}-{digest}"

    def __str__(self) -> str:
        return " ".join(f"{axis}={value}" for axis, value in self.values) or "a single device"


def _word(axis: str, value: AxisValue) -> str:
    if isinstance(value, bool):
        word = axis if value else f"no{axis}"
    elif isinstance(value, int):
        word = f"{axis}{value}"
    else:
        word = value if axis == "dtype" else f"{axis}{value}"
    return re.sub(r"[^a-z0-9]", "", word.lower())
