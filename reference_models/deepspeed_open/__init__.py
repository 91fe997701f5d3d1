"""Silent differences between the current DeepSpeed and plain PyTorch, which are not fixed upstream.

Importing this imports neither torch nor DeepSpeed.
"""

from __future__ import annotations

from pytest_trainsafe.reference_models.deepspeed_open.catalogue import OPEN
from pytest_trainsafe.reference_models.deepspeed_open.entry import OpenDifference

__all__ = ["OPEN", "OpenDifference", "find"]


def find(name: str) -> OpenDifference:
    """The entry of OPEN named `name`.  Raises ValueError, which lists the names, if none has it."""
    for difference in OPEN:
        if difference.name == name:
            return difference
    names = ", ".join(difference.name for difference in OPEN)
    raise ValueError(
        f"no known difference between DeepSpeed and PyTorch has the name {name!r}; choose one of "
        f"{names}"
    )
