"""Modes of torch's dispatcher, which see each operator: hiding, ordering and counting them.

Needs `TorchDispatchMode`, `_disable_current_modes`, `_get_current_dispatch_mode_stack` and the
method `_should_skip_dynamo` of modes in torch.utils._python_dispatch; and
`_len_torch_dispatch_stack`, `_push_on_torch_dispatch_stack`, `_pop_torch_dispatch_stack`,
`_get_dispatch_mode` and `_TorchDispatchModeKey` of torch._C.  torch 2.10 to 2.14 have them, except
for `_should_skip_dynamo`: torch 2.10 has no such method, and does not ask for it.

Without `TorchDispatchMode`, operators that torch's own code calls are not seen.  Without the other
names, the operators that the package itself calls are not hidden from the program's modes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from pytest_trainsafe.compat.private import Capability

MODES = Capability("operators that code of torch calls are not seen")
STACK = Capability("modes of the program's see operators that the recorder calls")

_C = "torch._C"
_FILE = "torch.utils._python_dispatch"


class _NoMode:
    """Stands for a mode in a release without them: it sees nothing."""

    def __enter__(self) -> _NoMode:
        return self

    def __exit__(self, *_: object) -> None:
        return None


if TYPE_CHECKING:
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

    from pytest_trainsafe.compat.distributed.held_work import Begun
else:
    TorchDispatchMode = MODES.of(_FILE, "TorchDispatchMode") or _NoMode


class ReducingMode(Protocol):
    """A mode on whose numbers a reduction over ranks must be computed by itself."""

    def reduced_over(self, tensors: Sequence[torch.Tensor], group: Any, kind: str) -> Begun:
        """Begins to reduce tensors over the ranks of a group, which all call this, to new ones."""
        ...


class CompilableMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode that torch.compile ignores: code is compiled as without it.

    By default, torch imports its compiler at the first operator that such a mode sees, to keep
    `__torch_dispatch__` from being compiled.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


#: How many modes are active in this thread; 0 if that is off.
modes_active: Callable[[], int] = STACK.of(_C, "_len_torch_dispatch_stack") or (lambda: 0)

_stack = STACK.of(_FILE, "_get_current_dispatch_mode_stack")
_disabled = STACK.of(_FILE, "_disable_current_modes")
_push = STACK.of(_C, "_push_on_torch_dispatch_stack")
_pop = STACK.of(_C, "_pop_torch_dispatch_stack")
_mode_of = STACK.of(_C, "_get_dispatch_mode")

#: The kinds of modes with which torch traces operators; the first is the one with fake tensors.
_TRACING = tuple(
    STACK.of(_C, f"_TorchDispatchModeKey.{kind}") for kind in ("FAKE", "PROXY", "FUNCTIONAL")
)


def without_modes() -> AbstractContextManager[object]:
    """Hides the operators of a context from all modes, such as the program's own."""
    if _disabled is None or not modes_active():
        return nullcontext()
    if all(_mode_of(kind) is None for kind in _TRACING):
        return _Hidden()
    context: AbstractContextManager[object] = _disabled()
    return context


class _Hidden:
    """Takes all modes off the stack for a context, at a third of the time that torch's own takes.

    None of them may be one with which torch traces.
    """

    __slots__ = ("_modes",)

    def __enter__(self) -> None:
        self._modes = [_pop(None) for _ in range(modes_active())]

    def __exit__(self, *_: object) -> None:
        for mode in reversed(self._modes):
            _push(mode)


def reducing_mode() -> ReducingMode | None:
    """The innermost active mode that computes reductions over ranks; None if there is none.

    torch gives such a mode the operators of process groups that are written in C++ only.
    """
    if _stack is None or not modes_active():
        return None
    return next((mode for mode in reversed(_stack()) if hasattr(mode, "reduced_over")), None)


def on_fake_tensors() -> bool:
    """Whether operators run on fake tensors, as during compilation, so that nothing is computed."""
    return STACK.available and _mode_of(_TRACING[0]) is not None


@contextmanager
def innermost(mode: TorchDispatchMode) -> Iterator[None]:
    """Makes `mode` the innermost mode, so that the program's modes receive an operator first.

    While torch traces operators, and if the modes cannot be ordered, `mode` is not entered.
    """
    if not STACK.available or any(_mode_of(kind) is not None for kind in _TRACING):
        yield
        return
    others = [_pop(None) for _ in range(modes_active())]
    _push(mode)
    for other in reversed(others):
        _push(other)
    try:
        yield
    finally:
        for _ in others:
            _pop(None)
        _pop(None)
        for other in reversed(others):
            _push(other)
