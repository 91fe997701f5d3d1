"""Reads from an attribute which range of a flattened parameter this rank's optimizer holds.

Called by the recorder.  Megatron-LM's distributed optimizer keeps a rank's piece of the master
weights under `main_param`, as a vector, but only the optimizer knows which elements of the
parameter it contains.  The attribute `main_param_range`, which pytest-trainsafe defines, declares
them.
"""

from __future__ import annotations

from typing import Any

from pytest_trainsafe.core.indices import LayoutError
from pytest_trainsafe.core.layout import Flat, Sizes

#: The axes over which optimizers split parameters that are replicated over them.
AXES = ("dp", "cp")


def optimizer_range(name: str, parameter: Any, sizes: Sizes) -> Flat | None:
    """The range that `main_param_range = (start, end)` declares; None without the attribute.

    The range is of this rank's flattened parameter; (0, 0) if this rank's optimizer has no part
    of it.  Raises LayoutError for an invalid range.
    """
    given = getattr(parameter, "main_param_range", None)
    if given is None:
        return None
    elements = parameter.numel()
    match given:
        case (int(start), int(end)) if 0 <= start <= end <= elements:
            axes = tuple(axis for axis in AXES if sizes[axis] > 1)
            return Flat(start, end - start, tuple(parameter.shape), axes or AXES[:1])
    raise LayoutError(
        f"{name} has main_param_range {given!r}; it must be (start, end), a range of the "
        f"{elements} elements of the flattened parameter on this rank"
    )
