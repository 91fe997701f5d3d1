"""DeepSpeed's silent bugs of old, each shown in the release that had it or planted again.

An entry says at which Point it acts and at which not, so that a test of a detector can ask
whether the detector tells the two apart.  Importing this imports neither torch nor DeepSpeed.
"""

from __future__ import annotations

from pytest_trainsafe.reference_models.deepspeed_bugs.bug import DeepSpeedBug
from pytest_trainsafe.reference_models.deepspeed_bugs.catalogue import BUGS

__all__ = ["BUGS", "NAMES", "DeepSpeedBug", "find"]

NAMES = tuple(bug.name for bug in BUGS)


def find(name: str) -> DeepSpeedBug:
    """The bug of this name.  Raises ValueError, listing the names, where there is none."""
    for bug in BUGS:
        if bug.name == name:
            return bug
    raise ValueError(f"there is no DeepSpeed bug {name!r}; choose one of {', '.join(NAMES)}")
