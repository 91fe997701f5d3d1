"""Silent bugs of DeepSpeed.

Each bug acts in a release that has it, or is planted into the installed one.  An entry names a
Point where the bug acts and one where it does not, so that a test can check whether a detector
distinguishes the two.  Importing this module imports neither torch nor DeepSpeed.
"""

from __future__ import annotations

from pytest_trainsafe.reference_models.deepspeed_bugs.bug import DeepSpeedBug
from pytest_trainsafe.reference_models.deepspeed_bugs.catalogue import BUGS

__all__ = ["BUGS", "NAMES", "DeepSpeedBug", "find"]

NAMES = tuple(bug.name for bug in BUGS)


def find(name: str) -> DeepSpeedBug:
    """The bug of this name.  Raises ValueError, which lists the known names, if there is none."""
    for bug in BUGS:
        if bug.name == name:
            return bug
    raise ValueError(f"there is no DeepSpeed bug {name!r}; choose one of {', '.join(NAMES)}")
