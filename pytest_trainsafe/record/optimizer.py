"""Listens to an optimizer's steps and finds its state, whatever kind of optimizer it is.

Called by the parameter recorder.  Wrappers (mixed precision, sharding, accelerators) often are
no `torch.optim.Optimizer`, or are one in name only; each keeps the wrapped one in `optimizer`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from pytest_trainsafe.record.clock import ProgramError


def listen(optimizer: Any, before: Callable[[bool], None], after: Callable[[], None]) -> None:
    """Call `before(whether a closure was given)` and `after()` around every step.

    Raises ProgramError for an object that has no `step`.
    """
    # A subclass that does not call Optimizer.__init__ has no hooks.
    if isinstance(optimizer, torch.optim.Optimizer) and hasattr(
        optimizer, "_optimizer_step_pre_hooks"
    ):
        optimizer.register_step_pre_hook(lambda _, args, kwargs: before(_closure(args[1:], kwargs)))
        optimizer.register_step_post_hook(lambda *_: after())
        return
    step = getattr(optimizer, "step", None)
    if not callable(step):
        raise ProgramError(
            f"ctx.watch was given the optimizer {type(optimizer).__name__}, which has no step(); "
            "pass the one object whose step() the program calls, or None"
        )

    @functools.wraps(step)
    def watched(*args: Any, **kwargs: Any) -> Any:
        before(_closure(args, kwargs))
        result = step(*args, **kwargs)
        after()
        return result

    optimizer.step = watched


def states(optimizer: Any, parameter: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """The state tensors of a parameter or of its master copy, by name."""
    holders = (parameter, getattr(parameter, "main_param", None))
    for level in _levels(optimizer):
        state = getattr(level, "state", None)
        if not isinstance(state, Mapping):
            continue
        for holder in holders:
            if isinstance(holder, torch.Tensor) and holder in state:
                for key, value in state[holder].items():
                    if isinstance(value, torch.Tensor):
                        yield str(key), value
                return


def _levels(optimizer: Any) -> Iterator[Any]:
    """The optimizer and those that it wraps, outermost first."""
    seen: set[int] = set()
    while optimizer is not None and id(optimizer) not in seen:
        yield optimizer
        seen.add(id(optimizer))
        optimizer = getattr(optimizer, "optimizer", None)


def _closure(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return any(callable(value) for value in (*args, kwargs.get("closure")))
