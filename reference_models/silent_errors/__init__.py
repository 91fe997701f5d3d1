"""The silent errors that TrainCheck was evaluated on, re-created from their public descriptions.

They are those of Tables 3 and 5 of Jiang et al., "Training with Confidence: Catching Silent Errors
in Deep Learning Training with Automated Proactive Checks" (OSDI 2025).  Every program is correct
with `faulty=False`.  A program of one process is `train(*, faulty, seed=0, steps=...)`; a program
of two ranks is `train(ctx, faulty=False, steps=...)`.  Both return an `Outcome`.

Importing this package does not import torch; a call of `program` does.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from pytest_trainsafe.reference_models.silent_errors.error import SilentError
from pytest_trainsafe.reference_models.silent_errors.new_errors import NEW
from pytest_trainsafe.reference_models.silent_errors.reproduced import REPRODUCED

__all__ = ["ERRORS", "NAMES", "NEW", "REPRODUCED", "SilentError", "find", "program"]

ERRORS = (*REPRODUCED, *NEW)

NAMES = tuple(error.name for error in ERRORS)


def find(name: str) -> SilentError:
    """Return the error of this name. Raises ValueError, which lists all names, if none has it."""
    for error in ERRORS:
        if error.name == name:
            return error
    raise ValueError(f"there is no silent error {name!r}; choose one of {', '.join(NAMES)}")


def program(error: SilentError) -> Callable[..., Any]:
    """Import the error's program; return its function `train`.

    The argument `faulty` of `train` switches the error on.
    """
    train: Callable[..., Any] = import_module(f"{__name__}.{error.module}").train
    return train
