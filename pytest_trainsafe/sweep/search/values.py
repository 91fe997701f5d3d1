"""The values of axes that a fuzz test leaves open: `parallel_points(program, tp=..., layers=...)`.

An integer parameter such as `layers` gets 1, 2, 3 and values around its default.  The sizes of the
parallel axes divide some of these values and not others.  A number of classes, such as the size of
a vocabulary, is at least 2: a softmax over one class is constant, and so is a loss of it.
"""

from __future__ import annotations

import re

from pytest_trainsafe.core.mesh.sweep_axes import mesh_axis
from pytest_trainsafe.core.point import AxisValue
from pytest_trainsafe.core.usage import shown
from pytest_trainsafe.errors import SweepError
from pytest_trainsafe.sweep.program import Program

#: The values of the other built-in axes: those that are neither sizes of ranks nor dtypes.
_BUILT_IN: dict[str, tuple[AxisValue, ...]] = {
    "vpp": (1, 2),
    "zero": (0, 1, 2, 3),
    "microbatches": (1, 2, 3, 4, 6),
    **dict.fromkeys(("sp", "compile", "recompute"), (False, True)),
}

#: Names of parameters that are a number of classes.
_COUNTS_CLASSES = re.compile(r"vocab|(^|_)classes$", re.IGNORECASE)


def open_values(program: Program, name: str, max_world_size: int) -> tuple[AxisValue, ...]:
    """Returns the values of the axis `name`, which a fuzz test gives as `...`.

    Raises SweepError for an axis whose values cannot be derived.
    """
    mesh = program.traits.mesh
    if name in mesh.names or name == "ep":
        return tuple(range(1, max_world_size + 1))
    if name == "dtype":
        return program.traits.drawn_dtypes
    if name in _BUILT_IN and mesh_axis(mesh, name) is not None:
        return _BUILT_IN[name]
    parameter = program.parameters.get(name)
    default = parameter.default if parameter is not None else None
    if isinstance(default, bool):
        return False, True
    if isinstance(default, int) and default >= 0:
        return awkward(default, least=2 if _COUNTS_CLASSES.search(name) else 1)
    raise SweepError(
        f"axis {shown(name)} is given as `...`, but values are derived only for a built-in axis, "
        "or for a parameter whose default is a bool or an int >= 0; list its values"
    )


def awkward(default: int, least: int = 1) -> tuple[int, ...]:
    """Sizes around a default, of at least `least` or the default if that is smaller.

    The smallest comes first.  For a default of 0, which means off: 0 and 1.
    """
    if default == 0:
        return 0, 1
    near = {1, 2, 3, default - 1, default, default + 1, 2 * default}
    return tuple(sorted(size for size in near if size >= min(least, default)))
