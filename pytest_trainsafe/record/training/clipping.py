"""Detects that a program is about to clip its gradients.

`listening` wraps torch's clip functions while a Run is recorded.  Programs may have imported
these functions under any name before, so replacing the modules' attributes is not enough.  torch
decorates each of them with a wrapper that has the actual function in its closure; that function is
replaced.  Frameworks with clip functions of their own, and programs that clip by hand, call
`before_clip`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch

from pytest_trainsafe.core.rank.state import keep_per_rank, replacing

How = Literal["norm", "value", "nothing"]


@dataclass(frozen=True, slots=True)
class Clip:
    """A call of a clip function by the program; gradients are about to be clipped.

    `function` is the name of the clip function.  `how` says whether gradients are clipped by their
    norm or by value; "nothing" means that the call only computes a norm, which may be used for
    clipping later.  `parameters` are those whose gradients are clipped, None for all; with
    "nothing", they are the tensors whose norm is computed.  Gradients with a `norm` above `limit`
    are scaled down to that limit.
    """

    function: str
    how: How
    parameters: tuple[torch.Tensor, ...] | None = None
    norm: torch.Tensor | None = None
    limit: float | None = None


Listener = Callable[[Clip], None]

#: Called with every clip; None while nothing is recorded.
_listener: Listener | None = None
keep_per_rank(__name__, "_listener")

#: The clip functions of torch.nn.utils, and how each of them clips.
_FUNCTIONS: dict[str, How] = {
    "clip_grad_norm_": "norm",
    "clip_grads_with_norm_": "norm",
    "clip_grad_value_": "value",
    "get_total_norm": "nothing",
}


def before_clip(
    norm: torch.Tensor | float | None = None,
    max_norm: float | None = None,
    parameters: Iterable[torch.Tensor] | None = None,
    function: str = "before_clip",
) -> None:
    """Announces that gradients are about to be clipped; does nothing while nothing is recorded.

    For frameworks and programs that do not use torch's clip functions.  Call it on every rank
    between the last reduction of gradients and their clipping.  `norm` and `max_norm` are the norm
    and the limit that the clipping uses; without a norm, clipping is taken to be by value.
    `parameters` are those whose gradients are clipped (by default all), and `function` is the name
    of the clip function in reports.
    """
    if _listener is None:
        return
    value = None
    if norm is not None:
        value = norm if isinstance(norm, torch.Tensor) else torch.tensor(norm, dtype=torch.float64)
    given = None if parameters is None else tuple(parameters)
    how: How = "value" if norm is None else "norm"
    _listener(Clip(function, how, given, value, max_norm))


@contextlib.contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Calls `listener` before every clip in this context; restores torch's functions at the end."""
    global _listener
    before = _listener
    _listener = listener
    try:
        with contextlib.ExitStack() as stack:
            caller = _Caller()
            for name, how in _FUNCTIONS.items():
                function = getattr(torch.nn.utils, name, None)
                if callable(function):
                    stack.enter_context(_wrapped(name, function, how, caller))
            yield
    finally:
        _listener = before


class _Caller:
    """Tracks which clip function the program called, since clip functions call each other."""

    def __init__(self) -> None:
        self.outermost = ""

    @contextlib.contextmanager
    def within(self, name: str) -> Iterator[str]:
        """Yields the name of the outermost clip function, which may be `name` itself."""
        entered = not self.outermost
        if entered:
            self.outermost = name
        try:
            yield self.outermost
        finally:
            if entered:
                self.outermost = ""


@contextlib.contextmanager
def _wrapped(name: str, function: Any, how: How, caller: _Caller) -> Iterator[None]:
    """Replaces a clip function in this context.

    Replaces the function in the closure of its decorator; if there is no decorator, under all of
    its names, since torch calls some clip functions by other names than programs do.
    """
    cells = [c for c in function.__closure__ or () if inspect.isfunction(c.cell_contents)]
    if len(cells) == 1:
        actual = cells[0].cell_contents
        replacing(cells[0], "cell_contents")
        cells[0].cell_contents = _watched(actual, name, how, caller)
        try:
            yield
        finally:
            cells[0].cell_contents = actual
        return
    owners = (torch.nn.utils.clip_grad, torch.nn.utils)
    replaced = [(o, n) for o in owners for n, value in vars(o).items() if value is function]
    watched = _watched(function, name, how, caller)
    for owner, attribute in replaced:
        replacing(owner, attribute)
        setattr(owner, attribute, watched)
    try:
        yield
    finally:
        for owner, attribute in replaced:
            setattr(owner, attribute, function)


def _watched(actual: Any, name: str, how: How, caller: _Caller) -> Any:
    @functools.wraps(actual)
    def watched(*args: Any, **kwargs: Any) -> Any:
        with caller.within(name) as called:
            if name == "clip_grad_norm_" or _listener is None:
                return actual(*args, **kwargs)  # clip_grad_norm_ calls the other functions
            try:
                given = inspect.signature(actual).bind(*args, **kwargs)
            except TypeError:
                return actual(*args, **kwargs)  # raises the function's own error
            _listener(Clip(called, how, *_clip_arguments(given.arguments)))
            return actual(*given.args, **given.kwargs)

    return watched


def _clip_arguments(
    arguments: dict[str, Any],
) -> tuple[tuple[torch.Tensor, ...] | None, torch.Tensor | None, float | None]:
    """The parameters, norm and limit among a clip function's arguments.

    Replaces an iterator by a list in `arguments`, so that the function can iterate again.
    """
    key = next((key for key in ("parameters", "tensors") if key in arguments), "")
    if not key:
        return None, None, None
    if not isinstance(arguments[key], torch.Tensor):
        arguments[key] = list(arguments[key])
    held = arguments[key]
    parameters = (held,) if isinstance(held, torch.Tensor) else tuple(held)
    norm, limit = arguments.get("total_norm"), arguments.get("max_norm")
    return (
        parameters,
        norm if isinstance(norm, torch.Tensor) else None,
        float(limit) if limit is not None else None,
    )
