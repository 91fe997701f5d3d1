"""Marks functions for torch's compiler, `torch._dynamo`, without importing it; what it compiled.

The compiler takes a second and some hundred megabytes to import, which a rank that compiles nothing
can save.  torch itself imports it on the first call of many functions, such as the methods of
optimizers, only to switch it off; `postpone` prevents that.

Needs of torch._dynamo: `decorators.skip_code`, `eval_frame.OptimizedModule`, its `_orig_mod`, and
`utils.counters`; `_compiled_call_impl` of modules; and `get_eval_frame_callback` of
torch._C._dynamo.eval_frame.  torch 2.10 to 2.14 have all of these names.  Without `skip_code`, the
compiler also compiles hooks; without the others, compiled modules and regions are not recognised,
or hooks do not run around them.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from pytest_trainsafe.compat.private import Capability

SKIPS = Capability("hooks are compiled like the program's own code")
WRAPPERS = Capability("modules that torch.compile wraps are not recognised")
CALLS = Capability("hooks do not run around modules that module.compile() compiles")
REGIONS = Capability("compiled regions are not counted")
FRAMES = Capability("calls inside compiled code are observed like others")

_COMPILER = "torch._dynamo"

_callback = FRAMES.of("torch._C._dynamo.eval_frame", "get_eval_frame_callback")

#: The attribute in which torch keeps, for a function that it has decorated with
#: `torch._compile._disable_dynamo`, the same function with the compiler switched off.
_OFF = "__dynamo_disable"


class _AtImport:
    """A finder that runs actions after the compiler was imported, and then removes itself."""

    def __init__(self) -> None:
        self.actions: list[Callable[[], object]] = []
        self._looking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _COMPILER or self._looking:
            return None
        self._looking = True
        try:
            spec = find_spec(name)
        finally:
            self._looking = False
        loader: Any = None if spec is None else spec.loader
        if loader is None:
            return None
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            for action in self.actions:
                action()
            self.actions.clear()

        loader.exec_module = exec_module
        return spec


def is_imported() -> bool:
    """Whether this process has imported the compiler; nothing was compiled before that."""
    return _COMPILER in sys.modules


def when_imported(action: Callable[[], object]) -> None:
    """Calls `action()` as soon as the compiler is imported, which is now if it is already."""
    if is_imported():
        action()
        return
    finders = [each for each in sys.meta_path if isinstance(each, _AtImport)]
    if not finders:
        finders = [_AtImport()]
        sys.meta_path.insert(0, finders[0])
    finders[0].actions.append(action)


def disabled(function: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.compiler.disable(function)`: the function, which the compiler never compiles."""
    if is_imported():
        off: Callable[..., Any] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
        return off
    current = function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return current(*args, **kwargs)

    def disable() -> None:
        nonlocal current
        current = torch.compiler.disable(function)  # type: ignore[no-untyped-call]

    when_imported(disable)
    return skipped(call)


def skipped(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which the compiler traces as a part of its caller only, never by itself."""
    given: Any = function
    _skip(given.__code__)
    return function


@functools.cache  # functions with one code are made for each module of a model
def _skip(code: CodeType) -> None:
    def skip() -> None:
        skip_code = SKIPS.of(f"{_COMPILER}.decorators", "skip_code")
        if skip_code is not None:
            skip_code(code)

    when_imported(skip)


def skip_now(code: CodeType) -> None:
    """Imports the compiler, and makes it trace this code as a part of its caller only.

    When imported, the compiler stores the `nn.Module.__call__` of that moment.
    """
    import_module(_COMPILER)
    _skip(code)


def compiles() -> bool:
    """Whether the functions that this thread calls now are compiled, or run compiled."""
    return _callback is not None and _callback() is not None


def is_compiled_wrapper(module: object) -> bool:
    """Whether a module is the wrapper that `torch.compile(module)` returns."""
    if not is_imported():
        return False
    wrapper = WRAPPERS.of(f"{_COMPILER}.eval_frame", "OptimizedModule")
    return wrapper is not None and isinstance(module, wrapper)


def original_of(wrapper: Any) -> Any:
    """The module that a wrapper of `torch.compile(module)` runs."""
    return wrapper._orig_mod


def compiled_call(module: nn.Module) -> Callable[..., Any] | None:
    """The function that `module.compile()` has set as the module's call; None if there is none."""
    try:
        return module._compiled_call_impl
    except AttributeError:
        CALLS.lacks("Module._compiled_call_impl")
        return None


def set_compiled_call(module: nn.Module, call: Callable[..., Any]) -> None:
    """Replaces the function that `compiled_call` returns."""
    module._compiled_call_impl = call


def compiled_regions() -> int:
    """The number of regions that torch.compile has compiled in this process; 0 if unknown."""
    if not is_imported():
        return 0
    counters = REGIONS.of(f"{_COMPILER}.utils", "counters") or {}
    return int(counters.get("stats", {}).get("unique_graphs", 0))


def constant(function: Callable[[], None]) -> Callable[[], None]:
    """`torch.compiler.assume_constant_result(function)`: called when a caller is compiled."""
    when_imported(lambda: torch.compiler.assume_constant_result(function))  # type: ignore[no-untyped-call]
    return function


#: Whether `postpone` has marked the functions of this process; forked processes inherit both.
_postponed = False


def postpone(*, again: bool = False) -> None:
    """Postpones the import of the compiler until the program needs it.

    torch imports the compiler in the functions that it keeps from being compiled, to switch it off,
    and in the steps of optimizers, to break a graph there.  Those that exist now do without it,
    until it is imported.  Does nothing if it is imported already, or if torch marks these functions
    in another way.  A second call does nothing either, except with `again`: then it includes the
    functions that were imported since the first.
    """
    global _postponed
    if not is_imported() and (again or not _postponed):
        _postponed = True
        _run_as_they_are()
        _step_without_break()


def _run_as_they_are() -> None:
    """Lets functions that torch has decorated with `_disable_dynamo` run without the compiler."""
    decorated = _code(torch.optim.Optimizer.add_param_group)
    if decorated is None or _OFF not in decorated.co_consts:
        return
    # Not isinstance, which reads attributes of each object, some of which warn.
    functions = [
        wrapped
        for each in gc.get_referrers(decorated)
        if type(each) is FunctionType and each.__code__ is decorated
        if isinstance(wrapped := getattr(each, "__wrapped__", None), FunctionType)
        if _OFF not in vars(wrapped)
    ]
    for function in functions:
        setattr(function, _OFF, function)

    def restore() -> None:
        for function in functions:
            vars(function).pop(_OFF, None)

    when_imported(restore)


def _step_without_break() -> None:
    """Lets the steps of torch's optimizers run without the breaks of a graph at both ends."""
    decorated = _code(torch.optim.SGD.step)
    if decorated is None or not {"set_grad_enabled", "graph_break"} <= {*decorated.co_names}:
        return
    for optimizer in _subclasses(torch.optim.Optimizer):
        given: Any = optimizer
        step = vars(optimizer).get("step")
        if callable(step) and _code(step) is decorated and hasattr(step, "__wrapped__"):
            given.step = _without_break(step)


def _without_break(step: Callable[..., Any]) -> Callable[..., Any]:
    """What torch's decorator of `step` does, which is called again once there is a compiler."""
    within: Callable[..., Any] = vars(step)["__wrapped__"]

    def plain(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        with torch.set_grad_enabled(optimizer.defaults["differentiable"]):
            return within(optimizer, *args, **kwargs)

    current: Callable[..., Any] = plain

    @functools.wraps(within)
    def call(*args: Any, **kwargs: Any) -> Any:
        return current(*args, **kwargs)

    def restore() -> None:
        nonlocal current
        current = step

    when_imported(restore)
    return call


def _subclasses(cls: type) -> Iterator[type]:
    each: type
    for each in cls.__subclasses__():
        yield each
        yield from _subclasses(each)


def _code(function: object) -> CodeType | None:
    return getattr(function, "__code__", None)
