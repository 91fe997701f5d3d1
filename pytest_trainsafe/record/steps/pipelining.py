"""Marks the micro-batches of torch.distributed.pipelining.

The loop over the micro-batches is inside torch's schedules, where a program cannot enter
`ctx.microbatch`.  So the program calls `ctx.follow`, which calls this file.  A schedule calls its
stages once per micro-batch, and counts the micro-batches of each of its steps from 0.  The first
call of a stage may only infer shapes, without data; it belongs to no micro-batch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from pytest_trainsafe.record.clock import Clock, ProgramError

#: The methods of a stage that a schedule calls with a micro-batch's number on this rank.  The last
#: is for schedules that defer the gradients of weights; some releases of torch lack it.
METHODS = ("forward_one_chunk", "backward_one_chunk", "backward_weight_one_chunk")


def follow(
    stages: Iterable[Any],
    numbers: Sequence[int],
    clock: Clock,
    microbatch: Callable[[int], AbstractContextManager[int]],
) -> None:
    """Makes the stages enter `microbatch(numbers[i])` while they compute their i-th micro-batch.

    If a schedule runs several times in a step of the optimizer, its later runs continue `numbers`.
    Raises ProgramError for an object that is not a stage, and, when a schedule runs, for a
    micro-batch beyond the end of `numbers`.
    """
    for stage in stages:
        if not all(callable(getattr(stage, name, None)) for name in METHODS[:2]):
            raise ProgramError(
                f"ctx.follow was given a {type(stage).__name__}; pass a stage of "
                "torch.distributed.pipelining, or a list of this rank's stages"
            )
        ran = _Ran()
        for name in METHODS:
            if hasattr(stage, name):
                marked = _marked(getattr(stage, name), name, ran, numbers, clock, microbatch)
                setattr(stage, name, marked)


@dataclass(slots=True)
class _Ran:
    """What a stage ran in a step of the optimizer.

    `before` counts the micro-batches of the schedule's earlier runs in this step; `forwards` has
    the indices of those whose forward its current run has called.
    """

    step: int | None = None
    before: int = 0
    forwards: set[int] = field(default_factory=set)

    def index(self, step: int, index: int, forward: bool) -> int:
        """The index in the whole step of the schedule's micro-batch `index`."""
        if step != self.step:
            self.step, self.before = step, 0
            self.forwards.clear()
        if forward and index in self.forwards:  # a further run of the schedule begins
            self.before += len(self.forwards)
            self.forwards.clear()
        if forward:
            self.forwards.add(index)
        return self.before + index


def _marked(
    method: Callable[..., Any],
    name: str,
    ran: _Ran,
    numbers: Sequence[int],
    clock: Clock,
    microbatch: Callable[[int], AbstractContextManager[int]],
) -> Callable[..., Any]:
    @functools.wraps(method)
    def marked(*args: Any, **kwargs: Any) -> Any:
        if clock.step is None:
            return method(*args, **kwargs)  # an evaluation, which is not recorded
        given = int(next(iter((*args, *kwargs.values()))))
        index = ran.index(clock.step, given, name == METHODS[0])
        if index >= len(numbers):
            raise ProgramError(
                f"a pipeline stage ran micro-batch {index} (counted from 0), but ctx.follow was "
                f"told that this rank has only {len(numbers)} micro-batches; pass ctx.follow the "
                "number of micro-batches of a step, summed over all dp ranks"
            )
        with microbatch(numbers[index]):
            clock.resumed = name == METHODS[2]
            try:
                return method(*args, **kwargs)
            finally:
                clock.resumed = False

    return marked
