"""Finds the optimizers that update parameters, listens to their steps, and finds their state.

Called by the parameter recorder.  Wrappers (mixed precision, sharding, accelerators, lists of
optimizers) are often not a `torch.optim.Optimizer`, or only by inheritance.  Some skip the steps
of the optimizers inside: accelerate's does so in every micro-batch but the last, and loss scalers
do so when gradients overflow.  So the innermost optimizers are observed.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Protocol

import torch

from pytest_trainsafe.record.clock import ProgramError

#: Attributes under which wrappers keep the optimizers whose step() they call.
_INNER = (
    "chained_optimizers",  # Megatron-LM's ChainedOptimizer, whose `optimizer` raises
    "optimizers",  # torchtitan's OptimizersContainer
    "optimizer",  # accelerate, Lightning, Megatron-LM's mixed precision
    "optim",  # torch's ZeroRedundancyOptimizer and PostLocalSGDOptimizer
    "base_optimizer",  # SAM and its variants
)


#: How many tensors of one list or dict of an optimizer's state are recorded.
MAX_TENSORS = 64


class Listener(Protocol):
    """Callbacks around the steps of optimizers and of their wrappers."""

    def before_step(self, has_closure: bool, owned: Collection[int]) -> None:
        """Called when an optimizer's step begins.

        `has_closure` is whether the step was given a closure that computes the gradients, and
        `owned` has the ids of the parameters that the optimizer updates.
        """

    def after_step(self, owned: Collection[int]) -> None:
        """Called when an optimizer's step has ended."""

    def enter_wrapper(self) -> None:
        """Called when the step of a wrapper begins.

        The wrapper's step may or may not call the steps of the optimizers inside.
        """

    def leave_wrapper(self, wrapper: str) -> None:
        """Called when the step of a wrapper has ended; `wrapper` is the name of its class."""


def listen(optimizer: Any, listener: Listener) -> None:
    """Calls the listener around every step of an optimizer, a list or dict of them, or a wrapper.

    Raises ProgramError for an object that contains no optimizer and has no `step`.
    """
    found = stepping(optimizer)
    if not found:
        raise _no_step(optimizer)
    for one in found:
        _listen_to(one, listener)
    if not _is_collection(optimizer) and not any(one is optimizer for one in found):
        name = type(optimizer).__name__
        _around(optimizer, lambda _: listener.enter_wrapper(), lambda: listener.leave_wrapper(name))


def stepping(optimizer: Any) -> list[Any]:
    """The innermost optimizers: those whose step() updates parameters."""
    return [level for level in levels(optimizer) if not _inner(level)]


def owned_by(optimizer: Any) -> frozenset[int]:
    """The ids of the tensors in an optimizer's parameter groups."""
    return frozenset(
        id(parameter) for group in groups(optimizer) for parameter in group.get("params", ())
    )


def groups(optimizer: Any) -> list[Mapping[Any, Any]]:
    """An optimizer's parameter groups; empty if it has none."""
    found = _attribute(optimizer, "param_groups")
    found = found if isinstance(found, list | tuple) else ()
    return [group for group in found if isinstance(group, Mapping)]


def names_of_held(parameters: Mapping[str, torch.Tensor]) -> dict[int, str]:
    """Maps the id of each parameter, and of its master copy, to the parameter's name."""
    return {
        id(holder): name
        for name, parameter in parameters.items()
        for holder in (parameter, getattr(parameter, "main_param", None))
        if holder is not None
    }


def states(optimizer: Any, parameter: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the names and tensors of an optimizer's state for a parameter or its master copy.

    The innermost optimizer that has any is asked.  A wrapper may hold a copy from the last
    checkpoint, and None for a parameter of another rank, as ZeroRedundancyOptimizer does.
    """
    holders = (parameter, getattr(parameter, "main_param", None))
    for level in reversed(list(levels(optimizer))):
        state = _attribute(level, "state")
        if not isinstance(state, Mapping):
            continue
        for holder in holders:
            held = state.get(holder) if isinstance(holder, torch.Tensor) else None
            if isinstance(held, Mapping) and held:
                for key, value in held.items():
                    yield from _tensors(str(key), value)
                return


def _tensors(key: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """A tensor of the state, or the tensors of a list or dict, as Shampoo's preconditioners."""
    if isinstance(value, torch.Tensor):
        yield key, value
    elif isinstance(value, list | tuple | dict) and len(value) <= MAX_TENSORS:
        for name, each in value.items() if isinstance(value, dict) else enumerate(value):
            if isinstance(each, torch.Tensor):
                yield f"{key}.{name}", each


def _listen_to(optimizer: Any, listener: Listener) -> None:
    def before(has_closure: bool) -> None:
        listener.before_step(has_closure, owned_by(optimizer))

    def after() -> None:
        listener.after_step(owned_by(optimizer))

    if not callable(_attribute(optimizer, "step")):
        raise _no_step(optimizer)
    _around(optimizer, before, after)


def _no_step(optimizer: Any) -> ProgramError:
    return ProgramError(
        f"ctx.watch was given the optimizer {type(optimizer).__name__}, which has no step(); "
        "pass the optimizer that updates the parameters, a list or dict of optimizers, a wrapper "
        f"that keeps them in one of the attributes {', '.join(_INNER)}, or None"
    )


def _around(optimizer: Any, before: Callable[[bool], None], after: Callable[[], None]) -> None:
    """Calls `before(whether a closure was given)` and `after()` around an object's step."""
    if isinstance(optimizer, torch.optim.Optimizer):
        # A subclass may not call Optimizer.__init__, and then has no hooks.
        with contextlib.suppress(AttributeError):
            optimizer.register_step_post_hook(lambda *_: after())
            optimizer.register_step_pre_hook(
                lambda _, args, kwargs: before(_closure(args[1:], kwargs))
            )
            return
    step = optimizer.step

    @functools.wraps(step)
    def watched(*args: Any, **kwargs: Any) -> Any:
        before(_closure(args, kwargs))
        result = step(*args, **kwargs)
        after()
        return result

    optimizer.step = watched


def levels(optimizer: Any) -> Iterator[Any]:
    """Yields an optimizer and those that it wraps, outermost first.

    For a list or dict, yields those of its items.
    """
    seen: set[int] = set()

    def walk(level: Any) -> Iterator[Any]:
        if _is_collection(level):
            for one in _items(level):
                yield from walk(one)
        elif level is not None and id(level) not in seen:
            seen.add(id(level))
            yield level
            yield from walk(_inner(level))

    return walk(optimizer)


def _inner(wrapper: Any) -> list[Any]:
    """The optimizers inside a wrapper, from the first attribute of `_INNER` that has any."""
    for name in _INNER:
        held = _attribute(wrapper, name)
        items = _items(held) if _is_collection(held) else [held]
        found = [one for one in items if one is not wrapper and _steps(one)]
        if found:
            return found
    return []


def _steps(candidate: Any) -> bool:
    return not isinstance(candidate, type) and callable(_attribute(candidate, "step"))


def _is_collection(value: Any) -> bool:
    return isinstance(value, list | tuple | Mapping)


def _items(collection: Any) -> list[Any]:
    return list(collection.values() if isinstance(collection, Mapping) else collection)


def _attribute(holder: Any, name: str) -> Any:
    """An attribute; None if it does not exist or its property raises.

    Megatron-LM's ChainedOptimizer asserts in properties that only make sense for one optimizer.
    """
    try:
        return getattr(holder, name, None)
    except Exception:
        return None


def _closure(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    return any(callable(value) for value in (*args, kwargs.get("closure")))
