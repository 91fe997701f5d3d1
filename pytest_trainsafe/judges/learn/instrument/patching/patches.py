"""Exchanges functions for wrappers while an observation is active, and restores them.

A wrapper passes the call to the active observer.  If no observer is active, or while torch.compile
traces the wrapper, it only calls the original function.  Wrappers are kept and used again in the
same process, since schedulers, closures and the guards of compiled code may hold them.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any, Protocol

import torch

from pytest_trainsafe.compat.compiler import skip_now
from pytest_trainsafe.core.rank.state import replacing
from pytest_trainsafe.judges.learn.instrument.patching.catalogue import Target, subclasses
from pytest_trainsafe.record.clock import ProgramError


class Runner(Protocol):
    """The interface of an observer, to which the wrappers pass calls while it is active."""

    def run(
        self, target: Target, original: Callable[..., Any], args: Any, kwargs: dict[str, Any]
    ) -> Any:
        """Call the original function, observe the call as `target` says, and return the result."""
        ...


class _Active:
    """Holds the observer of this process that is active, or None."""

    runner: Runner | None = None


#: Owner, original and wrapper, by the owner's id, the attribute and the original's id.  The ids
#: stay valid because the objects are held here.
_wrappers: dict[tuple[int, str, int], tuple[Any, Any, Any]] = {}

#: Modules in which functions are not exchanged, since they compare functions by identity.
_INTERNAL = tuple(
    f"torch.{name}"
    for name in (
        *("_dynamo", "_inductor", "_functorch", "fx", "jit", "_jit", "_refs", "_prims", "_decomp"),
        *("onnx", "export", "_export", "overrides", "testing", "_higher_order_ops", "_meta"),
    )
)


def _stop_in_child() -> None:
    """Stop observing in a forked child: a worker of a data loader does not act for the rank."""
    _Active.runner = None


os.register_at_fork(after_in_child=_stop_in_child)


class Patches:
    """Exchanges functions for wrappers, and restores all of them at the end."""

    def __init__(self) -> None:
        #: Owner, attribute, its value before (`_ABSENT` if it was inherited), and the wrapper.
        self._exchanged: list[tuple[Any, str, Any, Any]] = []
        #: Cell, its content before, and the wrapper in it: a cell is a variable of the closure that
        #: torch puts around an optimizer's step.
        self._cells: list[tuple[Any, Any, Any]] = []
        self._done: set[tuple[int, str]] = set()

    @contextmanager
    def active(self, runner: Runner, targets: Iterable[Target]) -> Iterator[None]:
        """Pass calls of the functions in `targets` to the observer `runner` in a `with` block.

        Raises ProgramError if another observer is active.
        """
        if _Active.runner is not None:
            raise ProgramError(
                "API calls are already being observed. End the first `with observe(...)` block "
                "before the next one begins. If the program's Run records API calls, remove "
                "`observe` from the program"
            )
        # torch.compile skips wrappers but still compiles the functions that wrappers call.  Before
        # `nn.Module.__call__` is exchanged, since the compiler stores that when it is imported.
        skip_now(_CODE)
        replacing(_Active, "runner")
        _Active.runner = runner
        try:
            self.add(targets)
            yield
        finally:
            _Active.runner = None
            self._restore()

    def add(self, targets: Iterable[Target]) -> None:
        """Exchange further functions for wrappers; `_restore` also restores them."""
        functions: dict[int, tuple[Any, Any]] = {}
        for target in targets:
            where = id(target.owner), target.attribute
            if where in self._done:
                continue
            self._done.add(where)
            if target.is_method:
                self._exchange_method(target)
                continue
            if target.static:
                present = vars(target.owner).get(target.attribute)
                if isinstance(present, staticmethod):
                    wrapper = staticmethod(_wrapper_of(target, present.__func__))
                    self._exchange(target.owner, target.attribute, present, wrapper)
                continue
            original = getattr(target.owner, target.attribute)
            wrapper = _wrapper_of(target, original)
            if id(original) not in functions:
                functions[id(original)] = original, wrapper
            self._exchange(target.owner, target.attribute, original, wrapper)
        if functions:
            self._exchange_names(functions)

    def _exchange_method(self, target: Target) -> None:
        owner, name = target.owner, target.attribute
        present = vars(owner).get(name, _ABSENT)
        if isinstance(present, staticmethod | classmethod | property):
            return
        original = getattr(owner, name)
        if getattr(original, "hooked", False):  # by Optimizer.profile_hook_step
            cell = _cell_of(original)
            if cell is not None:
                replacing(cell, "cell_contents")
                inner = cell.cell_contents
                cell.cell_contents = _wrapper_of(target, inner)
                self._cells.append((cell, inner, cell.cell_contents))
                return
        self._exchange(owner, name, present, _wrapper_of(target, original))

    def _exchange(self, owner: Any, name: str, present: Any, wrapper: Any) -> None:
        replacing(owner, name)
        setattr(owner, name, wrapper)
        self._exchanged.append((owner, name, present, wrapper))

    def _exchange_names(self, functions: dict[int, tuple[Any, Any]]) -> None:
        """Exchange functions also in the modules that imported them by name.

        `functions` maps the id of each original to the original and its wrapper.
        """
        for module_name, module in list(sys.modules.items()):
            if module_name.startswith(_INTERNAL):
                continue
            names = getattr(module, "__dict__", {})
            # The modules have some 90 000 names together, and few have one of these functions.
            if functions.keys().isdisjoint(map(id, list(names.values()))):
                continue
            for name, value in list(names.items()):
                known = functions.get(id(value))
                if known is not None and known[0] is value:
                    self._exchange(module, name, *known)

    def _restore(self) -> None:
        mine = {id(wrapper) for *_, wrapper in self._exchanged}
        for owner, name, present, wrapper in reversed(self._exchanged):
            if vars(owner).get(name) is not wrapper:
                continue  # exchanged once more, by the program or by torch
            if present is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, present)
        for cls in subclasses(torch.optim.Optimizer):
            # torch put its hook around the wrapper if the class was first used meanwhile.
            cell = _cell_of(vars(cls).get("step"))
            if cell is not None and id(cell.cell_contents) in mine:
                cell.cell_contents = cell.cell_contents.__wrapped__
        for cell, inner, wrapper in reversed(self._cells):
            if cell.cell_contents is wrapper:
                cell.cell_contents = inner
        self._exchanged.clear()
        self._cells.clear()
        self._done.clear()


_ABSENT = object()


def _cell_of(function: Any) -> Any:
    """The closure cell in which torch's hook around `Optimizer.step` holds the method, or None."""
    code = getattr(function, "__code__", None)
    if code is None or code.co_freevars != ("func",):
        return None
    return function.__closure__[0]


def _wrapper_of(target: Target, original: Any) -> Any:
    key = id(target.owner), target.attribute, id(original)
    known = _wrappers.get(key)
    if known is None:
        known = _wrappers[key] = target.owner, original, _wrap(target, original)
    return known[2]


def _wrap(target: Target, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def observed(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling():
            return original(*args, **kwargs)
        runner = _Active.runner
        if runner is None:
            return original(*args, **kwargs)
        return runner.run(target, original, args, kwargs)

    return observed


#: The code that all wrappers share.
_CODE = next(each for each in _wrap.__code__.co_consts if isinstance(each, CodeType))
