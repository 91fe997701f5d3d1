"""The axes of a sweep over a mesh: the mesh's own, and those of the built-in axes that it has."""

from __future__ import annotations

from pytest_trainsafe.core.axes import AXES, Axis
from pytest_trainsafe.core.mesh import Mesh
from pytest_trainsafe.core.point import MESH_AXES
from pytest_trainsafe.core.usage import listing
from pytest_trainsafe.errors import SweepError

#: Axes that say how a Run is executed, not what is trained.  A reference has none of them, except
#: pp where a test asks for it.  A program's own mesh has other axes: see `parallel_axes`.
PARALLEL_AXES = frozenset({*MESH_AXES, "sp", "vpp", "ep", "zero", "recompute", "compile"})

#: Axes that say what is trained.  The reference has the same values for them as the candidate.
PROBLEM_AXES = frozenset({"microbatches"})


def parallel_axes(mesh: Mesh) -> frozenset[str]:
    """The names in PARALLEL_AXES, and those of a mesh's axes and roles (dp, cp, tp, pp)."""
    return PARALLEL_AXES | mesh.names


def axes_over(mesh: Mesh) -> tuple[str, ...]:
    """The names of the built-in axes of a sweep, and of the axes that a mesh declares.

    A built-in mesh axis, such as tp, is left out if the mesh does not declare it.  A program's
    keyword arguments may be axes of a sweep too, but are not included.
    """
    built_in = (name for name in AXES if name not in MESH_AXES or name in mesh.axes)
    return tuple(dict.fromkeys((*built_in, *mesh.axes, *mesh.overlaps)))


def mesh_axis(mesh: Mesh, name: str) -> Axis | None:
    """The axis `name` of a sweep over a mesh: an axis of the mesh, or a built-in axis.

    Returns None for any other name.  Raises SweepError for dp, cp, tp or pp if the mesh has no axis
    of this name.  The other built-in axes, such as dtype, belong to every mesh.
    """
    if name in mesh.axes or (name in mesh.overlaps and name not in AXES):
        return Axis(name, (int,), minimum=1)
    if name in MESH_AXES:
        members = mesh.members(name)
        instead = f"; axes of the role {name!r}: {listing(members)}" if members else ""
        raise SweepError(
            f"the program's mesh has no axis {name!r}; its mesh axes are {listing(mesh.axes)}"
            + instead
        )
    return AXES.get(name)
