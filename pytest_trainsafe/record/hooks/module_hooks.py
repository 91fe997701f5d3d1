"""Hooks on modules that torch.compile may run; they are called only outside of compiled regions.

A hook that writes cannot be compiled: inside a compiled region it would break the graph at every
module, which is an error with `fullgraph=True`.  So when the compiler traces hooks together with
their modules, it finds hooks that do nothing.  The inputs and outputs of a region are still seen:
hooks of a module that torch.compile wraps are on the wrapper, and hooks of a module compiled by
`module.compile()` run around its compiled call.

Used by the recorder for every hook on a module.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from pytest_trainsafe.compat.compiler import (
    compiled_call,
    constant,
    disabled,
    is_compiled_wrapper,
    set_compiled_call,
    skipped,
)

#: A pre-hook takes module, args and kwargs, and returns None or new args and kwargs; a hook
#: takes module, args, kwargs and output, and returns None or a new output.
PreHook = Callable[[nn.Module, Any, Any], "tuple[Any, Any] | None"]
Hook = Callable[[nn.Module, Any, Any, Any], Any]

#: torch reads this variable each time that a program compiles something.
_DISABLE = "TORCHDYNAMO_DISABLE"


class _Hooks(NamedTuple):
    before: list[PreHook]
    after: list[Hook]


class ModuleHooks:
    """The hooks on the modules of one model, and which modules are inside compiled regions."""

    def __init__(self) -> None:
        #: Modules that the compiler traced as part of a region.
        self._traced: set[str] = set()
        #: Modules with a hook that was called.
        self._seen: set[str] = set()
        self._hooks: dict[nn.Module, _Hooks] = {}
        self._names: dict[nn.Module, str] = {}
        #: The compiled call that runs a module's hooks, by module.
        self._surrounded: dict[nn.Module, object] = {}
        #: Modules whose hooks `_around` calls now; if their compiled code falls back to Python, the
        #: hooks on the modules must not run a second time.
        self._running: list[nn.Module] = []

    @property
    def inside(self) -> list[str]:
        """The names of the modules that run inside compiled regions, where hooks are not called.

        Empty if nothing is compiled.  Otherwise, all modules whose hooks never ran count as inside.
        It does not suffice to note which modules the compiler traced: a region that was compiled
        for one module may run for others of its class without being traced again.
        """
        if not (self._traced or self._surrounded or any(map(is_compiled_wrapper, self._hooks))):
            return []
        return [
            name
            for module, name in self._names.items()
            if name not in self._seen and type(module).forward is not nn.Module.forward
        ]

    def before(self, module: nn.Module, name: str, hook: PreHook) -> None:
        """Calls `hook(module, args, kwargs)` before each call of a module."""
        eager = disabled(hook)
        self._of(module, name).before.append(eager)
        module.register_forward_pre_hook(self._outside(module, name, eager), with_kwargs=True)

    def after(self, module: nn.Module, name: str, hook: Hook, *, always_call: bool = False) -> None:
        """Calls `hook(module, args, kwargs, output)` after each call of a module.

        With `always_call`, the hook is also called if an exception ended the call.
        """
        eager = disabled(hook)
        self._of(module, name).after.append(eager)
        module.register_forward_hook(
            self._outside(module, name, eager), with_kwargs=True, always_call=always_call
        )

    def surround(self) -> None:
        """Puts the hooks of modules compiled by `module.compile()` around their compiled calls.

        Called before each step, because a module may be compiled at any time.
        """
        for module in self._hooks:
            compiled = compiled_call(module)
            if compiled is not None and compiled is not self._surrounded.get(module):
                self._surrounded[module] = around = self._around(module, compiled)
                set_compiled_call(module, around)

    def _of(self, module: nn.Module, name: str) -> _Hooks:
        self._names[module] = name
        return self._hooks.setdefault(module, _Hooks([], []))

    def _outside(
        self, module: nn.Module, name: str, eager: Callable[..., Any]
    ) -> Callable[..., Any]:
        """A hook that calls `eager` when Python runs the module.

        When the compiler traces the module instead, the hook only adds it to `_traced`.
        """
        traced, seen, running = self._traced, self._seen, self._running

        def note_traced() -> None:
            traced.add(name)

        # The compiler calls `note` while it compiles; the call is not part of the graph.
        note = constant(note_traced)

        def called(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                note()
                return None
            if module in running:
                return None
            seen.add(name)
            return eager(*args, **kwargs)

        # After a graph break at a module's call, Python runs the module's hooks, and the compiler
        # would otherwise start a separate graph in each of them.
        return skipped(called)

    def _around(self, module: nn.Module, compiled: Callable[..., Any]) -> Callable[..., Any]:
        """A function that calls a module's hooks before and after its compiled call."""
        hooks, running = self._hooks[module], self._running
        seen, name = self._seen, self._names[module]

        @functools.wraps(compiled)
        def call(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():  # a nested region
                return compiled(*args, **kwargs)
            seen.add(name)
            for before in hooks.before:
                args, kwargs = before(module, args, kwargs) or (args, kwargs)
            running.append(module)
            try:
                output = compiled(*args, **kwargs)
            finally:
                running.pop()
            for after in hooks.after:
                changed = after(module, args, kwargs, output)
                output = output if changed is None else changed
            return output

        return skipped(call)


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """Disables torch.compile, so that functions and modules run as Python code.

    Used for references, because the uncompiled program counts as correct.  Also, noise can be
    injected, and casts and all modules observed, only without compilation.
    """
    before = os.environ.get(_DISABLE)
    os.environ[_DISABLE] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_DISABLE]
        else:
            os.environ[_DISABLE] = before
