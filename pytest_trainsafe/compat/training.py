"""What optimizers, learning rate schedulers and gradient scalers keep in private.

Needs `_get_scalar_dtype` in the modules of torch.optim; the attributes `_step_count` and `_last_lr`
of schedulers, and `_schedulers` of those that step others; and `_scale`, `_growth_tracker`,
`_enabled`, `_growth_factor`, `_backoff_factor` and `_growth_interval` of gradient scalers.  torch
2.10 to 2.14 have all of these names.

Without the first, the scalars of optimizers have the dtype of the rung instead of the program's.
Without the attributes, these numbers are not observed.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from pytest_trainsafe.compat.private import Capability
from pytest_trainsafe.core.rank.state import replacing

SCALARS = Capability("scalars of optimizers have the dtype of the rung")
SCALERS = Capability("the numbers of gradient scalers are not observed")

_SCALAR = "_get_scalar_dtype"

#: The attributes of schedulers that count steps and hold the last learning rates.
SCHEDULER_ATTRIBUTES = frozenset({"_step_count", "_last_lr"})

_TENSORS = ("_scale", "_growth_tracker")
_SETTINGS = ("_enabled", "_growth_factor", "_backoff_factor", "_growth_interval")


def schedulers_of(scheduler: object) -> tuple[LRScheduler, ...]:
    """The schedulers that a sequence or chain of schedulers steps; () for any other."""
    return tuple(getattr(scheduler, "_schedulers", ()))


@contextmanager
def replaced_scalar_dtype(
    make: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Iterator[None]:
    """Replaces the function that chooses the dtype of optimizers' scalars, by `make(original)`.

    Each module with an optimizer of torch has a name of its own for it.
    """
    SCALARS.of("torch.optim.optimizer", _SCALAR)
    found = vars(torch.optim).values()
    kinds = (each for each in found if isinstance(each, type) and issubclass(each, Optimizer))
    # Not `kind.__module__`, which torch sets to the public name of some.
    modules = (sys.modules[name] for name in {kind.__init__.__module__ for kind in kinds})
    given = [(each, getattr(each, _SCALAR)) for each in modules if hasattr(each, _SCALAR)]
    for module, original in given:
        replacing(module, _SCALAR)
        setattr(module, _SCALAR, make(original))
    try:
        yield
    finally:
        for module, original in given:
            setattr(module, _SCALAR, original)


def scaler_numbers(scaler: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yields the name of each number and setting of a gradient scaler, and what reads it.

    The scale and the growth tracker are None until the scaler has scaled a loss.
    """
    for attribute in _TENSORS:
        yield attribute.lstrip("_"), functools.partial(_item, scaler, attribute)
    enabled = isinstance(scaler, torch.amp.GradScaler) and scaler.is_enabled()
    for attribute in (*_TENSORS, *_SETTINGS):
        if not hasattr(scaler, attribute):
            if enabled:
                SCALERS.lacks(f"GradScaler.{attribute}")
        elif attribute in _SETTINGS:
            yield attribute.lstrip("_"), functools.partial(getattr, scaler, attribute)


def _item(thing: Any, attribute: str) -> object:
    held = getattr(thing, attribute, None)
    if isinstance(held, torch.Tensor):
        return held.item() if held.numel() == 1 else None
    return held
