"""Marks the micro-batches of torch.distributed.pipelining, whose schedules own the loop.

Called by `ctx.follow`.  A schedule calls its stages micro-batch by micro-batch; the first call on
a stage may be one without data, to learn shapes, and belongs to none.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from pytest_trainsafe.record.clock import Clock, ProgramError

#: What a schedule calls on a stage, each with a micro-batch's number on this rank.  The last one
#: is of schedules that put the gradients of weights off, and not in every release of torch.
METHODS = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")


def follow(
    stages: Iterable[Any],
    numbers: Sequence[int],
    clock: Clock,
    microbatch: Callable[[int], AbstractContextManager[int]],
) -> None:
    """Enter `microbatch(numbers[i])` around whatever the stages do for their i-th micro-batch."""
    for stage in stages:
        if not all(callable(getattr(stage, name, None)) for name in METHODS[:2]):
            raise ProgramError(
                f"ctx.follow was given a {type(stage).__name__}; it takes a stage of "
                "torch.distributed.pipelining, or a list of those that this rank has"
            )
        for name in METHODS:
            if hasattr(stage, name):
                method = getattr(stage, name)
                late = name == METHODS[2]
                setattr(stage, name, _marked(method, numbers, clock, microbatch, late))


def _marked(
    method: Callable[..., Any],
    numbers: Sequence[int],
    clock: Clock,
    microbatch: Callable[[int], AbstractContextManager[int]],
    late: bool,
) -> Callable[..., Any]:
    @functools.wraps(method)
    def marked(*args: Any, **kwargs: Any) -> Any:
        if clock.step is None:
            return method(*args, **kwargs)  # an evaluation
        index = int(next(iter((*args, *kwargs.values()))))
        if index >= len(numbers):
            raise ProgramError(
                f"a pipeline stage came to its micro-batch {index}, and ctx.follow said that this "
                f"rank has {len(numbers)}; give it the number of micro-batches of a step, all dp "
                "ranks together"
            )
        with microbatch(numbers[index]):
            clock.resumed = late
            try:
                return method(*args, **kwargs)
            finally:
                clock.resumed = False

    return marked
