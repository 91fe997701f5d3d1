"""A Point: one value per axis, one configuration of a parallel training run.

Made by the sweep, passed through launch, record and report.  Does not depend on torch.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

AxisValue = int | bool | str

#: Axes that multiply into the world size, fastest-varying rank dimension first.
#: The order is Megatron-LM's default (`tp-cp-ep-dp-pp`): neighbouring ranks share a tensor.
MESH_AXES = ("tp", "cp", "dp", "pp")

#: Maximum length of a Point's id; a file name has at most 255.
_LONGEST_ID = 150


@dataclass(frozen=True, slots=True)
class Point:
    """One value per axis, in the order in which the test declares them.

    An absent axis has its trivial value: 1 for the mesh axes, False for `sp`.
    """

    values: tuple[tuple[str, AxisValue], ...] = ()

    @classmethod
    def of(cls, mapping: Mapping[str, AxisValue] | None = None, **axes: AxisValue) -> Point:
        """Builds a Point from a mapping and keywords: `Point.of(tp=2, sp=True)`."""
        return cls(tuple({**(mapping or {}), **axes}.items()))

    def __iter__(self) -> Iterator[tuple[str, AxisValue]]:
        return iter(self.values)

    def get(self, axis: str, default: AxisValue) -> AxisValue:
        """The value of an axis, or `default` if the Point does not name it."""
        return dict(self.values).get(axis, default)

    def size(self, axis: str) -> int:
        """The number of ranks along a mesh axis (1 if the Point does not name it)."""
        assert axis in MESH_AXES, axis
        return int(self.get(axis, 1))

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
        """The position of a rank on every mesh axis."""
        assert 0 <= rank < self.world_size, (rank, self)
        where = {}
        for axis in MESH_AXES:
            rank, where[axis] = divmod(rank, self.size(axis))
        return where

    def replace(self, **axes: AxisValue) -> Point:
        """This Point with some axes changed or added."""
        return Point.of(dict(self.values), **axes)

    def without(self, *axes: str) -> Point:
        """This Point with some axes reset to their trivial value."""
        return Point(tuple((axis, value) for axis, value in self.values if axis not in axes))

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
