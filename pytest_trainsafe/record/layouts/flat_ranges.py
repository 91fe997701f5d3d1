"""Which run of a flattened parameter this rank's optimizer holds, from attributes.

Called by the recorder.  Megatron-LM's distributed optimizer keeps a rank's piece of the master
weights under `main_param`, as a vector; which elements of the parameter it is, only the optimizer
knows.  `main_param_range`, ours, says so.
"""

from __future__ import annotations

from typing import Any

from pytest_trainsafe.core.indices import LayoutError
from pytest_trainsafe.core.layout import Flat, Sizes

#: The axes over which optimizers share out parameters that their ranks hold alike.
AXES = ("dp", "cp")


def optimizer_run(name: str, parameter: Any, sizes: Sizes) -> Flat | None:
    """The run that `main_param_range = (start, end)` declares, None without the attribute.

    The elements are those of this rank's parameter, flattened; (0, 0) where this rank's optimizer
    has none of them.  Raises LayoutError for a range that is none.
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
        f"{name} has main_param_range {given!r}; it is (start, end), a range of the "
        f"{elements} elements of the flattened parameter on this rank"
    )
