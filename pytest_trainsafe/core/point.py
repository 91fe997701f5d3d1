"""A Point: one value per axis, one configuration of a parallel training run.

Made by the sweep, carried through launch, record and report.  Knows nothing of torch.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytest_trainsafe.errors import ArgumentError, UnknownAxisError

AxisValue = int | bool | str

#: Axes that multiply into the world size, fastest-varying rank dimension first.
#: The order is Megatron-LM's default (`tp-cp-ep-dp-pp`): neighbouring ranks share a tensor.
MESH_AXES = ("tp", "cp", "dp", "pp")

#: Axes that have a size: those of the mesh, and those that count parts of it or of the model.
SIZED_AXES = (*MESH_AXES, "ep", "vpp")

#: The trivial value of an axis, which it has where a Point does not name it.
TRIVIAL: dict[str, AxisValue] = {
    **dict.fromkeys(SIZED_AXES, 1),
    "zero": 0,
    **dict.fromkeys(("sp", "recompute", "compile"), False),
}

#: The most characters of a Point's id; the name of a file has 255 at most.
_LONGEST_ID = 150


@dataclass(frozen=True, slots=True)
class Point:
    """One value per axis, in the order the test declared them.

    Axes that are absent have their trivial value: 1 for the mesh axes, False for `sp`.
    """

    values: tuple[tuple[str, AxisValue], ...] = ()

    @classmethod
    def of(cls, mapping: Mapping[str, AxisValue] | None = None, **axes: AxisValue) -> Point:
        """Build a Point from a mapping and keywords: `Point.of(tp=2, sp=True)`."""
        return cls(tuple({**(mapping or {}), **axes}.items()))

    def __iter__(self) -> Iterator[tuple[str, AxisValue]]:
        return iter(self.values)

    def get(self, axis: str, default: AxisValue) -> AxisValue:
        """The value of an axis, or `default` where the Point does not name it."""
        return dict(self.values).get(axis, default)

    def size(self, axis: str) -> int:
        """The number of ranks along a mesh axis, or the value of `ep` or `vpp`; 1 by default.

        ArgumentError for an axis that has no size.
        """
        if axis not in SIZED_AXES:
            raise ArgumentError(
                f"{self._name}.size({axis!r}): an axis with a size is one of "
                f"{', '.join(SIZED_AXES)}; {self._name}.get({axis!r}, default) gives the value of "
                "any other"
            )
        return int(self.get(axis, 1))

    def __getattr__(self, axis: str) -> AxisValue:
        """The value of an axis as an attribute: `point.recompute`.

        An axis that the Point does not name has its trivial value.  UnknownAxisError for an axis
        that neither the Point nor pytest-trainsafe knows: `get` takes a default for it.
        """
        if axis.startswith("_"):
            raise AttributeError(axis)
        if axis not in TRIVIAL and axis not in dict(self._plain.values):
            raise UnknownAxisError(
                f"{self._name} has no axis {axis!r}: the Point is {self._plain}, other axes are "
                f"{', '.join(TRIVIAL)}; {self._name}.get({axis!r}, default) gives the default "
                "where the Point does not name the axis"
            )
        return self.get(axis, TRIVIAL.get(axis, 0))

    @property
    def _plain(self) -> Point:
        """This Point, where looking at it has no effect."""
        return self

    @property
    def _name(self) -> str:
        """What the caller knows this Point by, for error messages."""
        return "point"

    @property
    def sizes(self) -> dict[str, int]:
        """The size of every mesh axis."""
        return {axis: self.size(axis) for axis in MESH_AXES}

    @property
    def world_size(self) -> int:
        """Number of ranks: `dp * tp * cp * pp`."""
        product = 1
        for axis in MESH_AXES:
            product *= self.size(axis)
        return product

    def coordinates(self, rank: int) -> dict[str, int]:
        """Where a rank stands on every mesh axis."""
        assert 0 <= rank < self.world_size, (rank, self)
        where = {}
        for axis in MESH_AXES:
            rank, where[axis] = divmod(rank, self.size(axis))
        return where

    def replace(self, **axes: AxisValue) -> Point:
        """This Point with some axes changed or added."""
        return Point.of(dict(self.values), **axes)

    def without(self, *axes: str) -> Point:
        """This Point with some axes at their trivial value."""
        return Point(tuple((axis, value) for axis, value in self.values if axis not in axes))

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
