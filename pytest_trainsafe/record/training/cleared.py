"""Records the calls of `zero_grad`: the line, when in the step it is, and for which parameters.

Called by the recorder.  Reports say from it whether a program sets gradients to zero between two
steps.  No operator runs here, so that nothing that watches operators sees one.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from pytest_trainsafe.core.code_files import calling_lines
from pytest_trainsafe.core.rank.state import replacing
from pytest_trainsafe.record.clock import Clock
from pytest_trainsafe.trace.facts import Zeroed, ZeroedMoment
from pytest_trainsafe.trace.writer import RankWriter

#: The most calls that a rank records, and the most parameters that an event names.
MAX_CALLS, MAX_NAMES = 16, 64


class ZeroGradCalls:
    """The calls of `zero_grad` of optimizers and modules of one rank."""

    def __init__(self, clock: Clock, writer: RankWriter) -> None:
        self._clock, self._writer = clock, writer
        self._names: Mapping[int, str] = {}
        self._calls = 0

    def watch(self, parameters: Mapping[str, torch.Tensor]) -> None:
        """Records calls from now on; `parameters` are those of the watched model, by name."""
        self._names = {id(each): name for name, each in parameters.items() if each.requires_grad}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Replaces the methods, and restores them at the end."""
        classes: list[Any] = [torch.optim.Optimizer, nn.Module]
        before = [(cls, cls.zero_grad) for cls in classes]
        for cls, original in before:
            replacing(cls, "zero_grad")
            cls.zero_grad = self._noting(original)
        try:
            yield
        finally:
            for cls, original in before:
                cls.zero_grad = original

    def _noting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def zero_grad(self_: Any, *args: Any, **kwargs: Any) -> Any:
            if self._names and self._calls < MAX_CALLS and not torch.compiler.is_compiling():
                self._note(self_)
            return original(self_, *args, **kwargs)

        return zero_grad

    def _note(self, called: Any) -> None:
        self._calls += 1
        if isinstance(called, nn.Module):
            given = {id(each) for each in called.parameters()}
        else:
            given = {id(each) for group in called.param_groups for each in group["params"]}
        kept = [name for number, name in self._names.items() if number not in given]
        at, user = calling_lines()
        clock = self._clock
        moment: ZeroedMoment = "before"
        if clock.step is not None and clock.differentiated:
            moment = "stepped" if clock.stepped else "backward"
        step = clock.steps_done if clock.step is None else clock.step
        self._writer.add(Zeroed(step, moment, at, user, tuple(kept[:MAX_NAMES]), len(kept)))
